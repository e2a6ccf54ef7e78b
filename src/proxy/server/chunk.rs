//! The frame of a chunked body, checked byte by byte; chunk data is skipped.

use crate::proxy::server::head::is_token_byte;
use crate::proxy::server::refusal::Refusal;

/// Digits of one chunk size.
const MAX_SIZE_DIGITS: u8 = 16;
/// Bytes of all chunk extensions of one body.
const MAX_EXTENSION_BYTES: usize = 4096;
/// Bytes of all trailer lines of one body.
const MAX_TRAILER_BYTES: usize = 4096;
/// Trailer lines of one body.
const MAX_TRAILERS: usize = 64;

/// Where in a chunked body the next byte is.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    at: At,
    /// Of the chunk at hand; what is left of it while in its data.
    size: u64,
    extension_bytes: usize,
    trailer_bytes: usize,
    trailers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Size { digits: u8 },
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    End,
}

impl Default for At {
    fn default() -> Self {
        Self::Size { digits: 0 }
    }
}

impl Chunked {
    /// True after the last byte of the body.
    pub(super) fn ended(&self) -> bool {
        self.at == At::End
    }

    /// Takes the next bytes and gives how many of them belong to the body
    /// and break no rule, and the rule that the byte after those breaks.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> (usize, Result<(), Refusal>) {
        let mut taken = 0;
        while taken < bytes.len() && !self.ended() {
            let step = match self.at {
                At::Data => Ok(self.data(bytes.len() - taken)),
                _ => self.byte(bytes[taken]).map(|()| 1),
            };
            match step {
                Ok(step) => taken += step,
                Err(refusal) => return (taken, Err(refusal)),
            }
        }
        (taken, Ok(()))
    }

    fn data(&mut self, available: usize) -> usize {
        let step = usize::try_from(self.size).map_or(available, |left| left.min(available));
        self.size -= step as u64;
        if self.size == 0 {
            self.at = At::DataCr;
        }
        step
    }

    fn byte(&mut self, b: u8) -> Result<(), Refusal> {
        self.at = match (self.at, b) {
            (At::Size { digits }, _) if b.is_ascii_hexdigit() && digits < MAX_SIZE_DIGITS => {
                self.size = self.size << 4 | hex_value(b);
                At::Size { digits: digits + 1 }
            }
            (At::Size { digits: 1.. }, b';') => At::Extension,
            (At::Size { digits: 1.. }, b'\r') => At::SizeLf,
            (At::Extension, b'\r') => At::SizeLf,
            (At::Extension, _) => return self.extension_byte(b),
            (At::SizeLf, b'\n') if self.size > i64::MAX.unsigned_abs() => return Err(Refusal::ChunkSize),
            (At::SizeLf, b'\n') if self.size == 0 => At::TrailerStart,
            (At::SizeLf, b'\n') => At::Data,
            (At::Size { .. } | At::SizeLf, _) => return Err(Refusal::ChunkSize),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size { digits: 0 },
            (At::DataCr | At::DataLf, _) => return Err(Refusal::ChunkEnd),
            _ => return self.trailer_byte(b),
        };
        Ok(())
    }

    fn extension_byte(&mut self, b: u8) -> Result<(), Refusal> {
        self.extension_bytes += 1;
        let good = self.extension_bytes <= MAX_EXTENSION_BYTES && (!b.is_ascii_control() || b == b'\t');
        if good { Ok(()) } else { Err(Refusal::ChunkExtension) }
    }

    fn trailer_byte(&mut self, b: u8) -> Result<(), Refusal> {
        self.trailer_bytes += 1;
        self.at = match (self.at, b) {
            _ if self.trailer_bytes > MAX_TRAILER_BYTES => return Err(Refusal::Trailer),
            (At::TrailerStart, b'\r') => At::LastLf,
            (At::TrailerStart, _) if is_token_byte(b) && self.trailers < MAX_TRAILERS => {
                self.trailers += 1;
                At::TrailerName
            }
            (At::TrailerName, b':') => At::TrailerValue,
            (At::TrailerName, _) if is_token_byte(b) => At::TrailerName,
            (At::TrailerValue, b'\r') => At::TrailerLf,
            (At::TrailerValue, _) if !b.is_ascii_control() || b == b'\t' => At::TrailerValue,
            (At::TrailerLf, b'\n') => At::TrailerStart,
            (At::LastLf, b'\n') => At::End,
            _ => return Err(Refusal::Trailer),
        };
        Ok(())
    }
}

fn hex_value(b: u8) -> u64 {
    char::from(b).to_digit(16).map_or(0, u64::from)
}
