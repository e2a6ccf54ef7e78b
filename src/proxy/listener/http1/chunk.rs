//! Chunked framing: the frame of a chunked body, checked byte by byte. Chunk data is skipped.

use crate::proxy::listener::http1::head::is_token_byte;
use crate::proxy::listener::rejected::RequestRejected;

/// Most digits of one chunk size.
const MAX_SIZE_DIGITS: u8 = 16;
/// Most bytes of all chunk extensions of one body.
const MAX_EXTENSION_BYTES: usize = 4096;
/// Most bytes of all trailer lines of one body.
const MAX_TRAILER_BYTES: usize = 4096;
/// Most trailer lines of one body.
const MAX_TRAILERS: usize = 64;

/// Position of the next byte in a chunked body.
#[derive(Debug, Default)]
pub(in crate::proxy::listener) struct ChunkedFrame {
    at: ChunkPosition,
    /// Size of the current chunk in bytes. Inside the chunk's data: the bytes that are left.
    size: u64,
    extension_bytes: usize,
    trailer_bytes: usize,
    trailers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkPosition {
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

impl Default for ChunkPosition {
    fn default() -> Self {
        Self::Size { digits: 0 }
    }
}

impl ChunkedFrame {
    /// Whether the last byte of the body has been taken.
    pub(in crate::proxy::listener) fn ended(&self) -> bool {
        self.at == ChunkPosition::End
    }

    /// Takes the next bytes. Returns the number of bytes that belong to the body and break no rule,
    /// and the rule that the byte after them breaks.
    pub(in crate::proxy::listener) fn advance(
        &mut self,
        bytes: &[u8],
    ) -> (usize, Result<(), RequestRejected>) {
        let mut taken = 0;
        while taken < bytes.len() && !self.ended() {
            let step = match self.at {
                ChunkPosition::Data => Ok(self.data(bytes.len() - taken)),
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
            self.at = ChunkPosition::DataCr;
        }
        step
    }

    fn byte(&mut self, b: u8) -> Result<(), RequestRejected> {
        self.at = match (self.at, b) {
            (ChunkPosition::Size { digits }, _) if b.is_ascii_hexdigit() && digits < MAX_SIZE_DIGITS => {
                self.size = self.size << 4 | hex_value(b);
                ChunkPosition::Size { digits: digits + 1 }
            }
            (ChunkPosition::Size { digits: 1.. }, b';') => ChunkPosition::Extension,
            (ChunkPosition::Size { digits: 1.. }, b'\r') => ChunkPosition::SizeLf,
            (ChunkPosition::Extension, b'\r') => ChunkPosition::SizeLf,
            (ChunkPosition::Extension, _) => return self.extension_byte(b),
            (ChunkPosition::SizeLf, b'\n') if self.size > i64::MAX.unsigned_abs() => {
                return Err(RequestRejected::ChunkSize);
            }
            (ChunkPosition::SizeLf, b'\n') if self.size == 0 => ChunkPosition::TrailerStart,
            (ChunkPosition::SizeLf, b'\n') => ChunkPosition::Data,
            (ChunkPosition::Size { .. } | ChunkPosition::SizeLf, _) => {
                return Err(RequestRejected::ChunkSize);
            }
            (ChunkPosition::DataCr, b'\r') => ChunkPosition::DataLf,
            (ChunkPosition::DataLf, b'\n') => ChunkPosition::Size { digits: 0 },
            (ChunkPosition::DataCr | ChunkPosition::DataLf, _) => return Err(RequestRejected::ChunkEnd),
            _ => return self.trailer_byte(b),
        };
        Ok(())
    }

    fn extension_byte(&mut self, b: u8) -> Result<(), RequestRejected> {
        self.extension_bytes += 1;
        let good = self.extension_bytes <= MAX_EXTENSION_BYTES && (!b.is_ascii_control() || b == b'\t');
        if good { Ok(()) } else { Err(RequestRejected::ChunkExtension) }
    }

    fn trailer_byte(&mut self, b: u8) -> Result<(), RequestRejected> {
        self.trailer_bytes += 1;
        self.at = match (self.at, b) {
            _ if self.trailer_bytes > MAX_TRAILER_BYTES => return Err(RequestRejected::Trailer),
            (ChunkPosition::TrailerStart, b'\r') => ChunkPosition::LastLf,
            (ChunkPosition::TrailerStart, _) if is_token_byte(b) && self.trailers < MAX_TRAILERS => {
                self.trailers += 1;
                ChunkPosition::TrailerName
            }
            (ChunkPosition::TrailerName, b':') => ChunkPosition::TrailerValue,
            (ChunkPosition::TrailerName, _) if is_token_byte(b) => ChunkPosition::TrailerName,
            (ChunkPosition::TrailerValue, b'\r') => ChunkPosition::TrailerLf,
            (ChunkPosition::TrailerValue, _) if !b.is_ascii_control() || b == b'\t' => {
                ChunkPosition::TrailerValue
            }
            (ChunkPosition::TrailerLf, b'\n') => ChunkPosition::TrailerStart,
            (ChunkPosition::LastLf, b'\n') => ChunkPosition::End,
            _ => return Err(RequestRejected::Trailer),
        };
        Ok(())
    }
}

fn hex_value(b: u8) -> u64 {
    char::from(b).to_digit(16).map_or(0, u64::from)
}
