//! Chunked framing: the frame of a chunked body, checked byte by byte.

use crate::protocol::http1::is_token_byte;

/// Most digits of one chunk size.
const MAX_SIZE_DIGITS: u8 = 16;
/// Most bytes of all chunk extensions of one body.
const MAX_EXTENSION_BYTES: usize = 4096;
/// Most bytes of all trailer lines of one body.
const MAX_TRAILER_BYTES: usize = 4096;
/// Most trailer lines of one body.
const MAX_TRAILERS: usize = 64;

/// Rule that a chunked body breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A size that is no hexadecimal number of 1 to 16 digits, or a size line that does not end in
    /// CRLF.
    #[error("a chunk's size line is malformed")]
    Size,
    /// Extensions with a control byte, or too many bytes of them.
    #[error("a chunk's extension is malformed or too long")]
    Extension,
    /// The data is not followed by CRLF.
    #[error("a chunk's data does not end in CRLF")]
    End,
    /// Trailers that are malformed, too many or too long.
    #[error("the trailers are malformed or too long")]
    Trailer,
}

/// Position of the next byte in a chunked body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkedFrame {
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

/// Bytes of a body that were taken, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TakenBytes {
    /// Bytes of data.
    pub(crate) data: usize,
    /// Bytes of the body, framing included.
    pub(crate) all: usize,
}

impl ChunkedFrame {
    /// Whether the last byte of the body has been taken.
    pub(crate) fn ended(&self) -> bool {
        self.at == ChunkPosition::End
    }

    /// Takes the next bytes. Returns the number of bytes that belong to the body and break no rule,
    /// and the rule that the byte after them breaks.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> (usize, Result<(), ChunkError>) {
        let mut taken = 0;
        while taken < bytes.len() && !self.ended() {
            match self.step(&bytes[taken..]) {
                Ok(step) => taken += step.all,
                Err(error) => return (taken, Err(error)),
            }
        }
        (taken, Ok(()))
    }

    /// Takes the next bytes as [`Self::advance`] does, and moves the data among them to the front.
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> (TakenBytes, Result<(), ChunkError>) {
        let mut taken = TakenBytes::default();
        while taken.all < bytes.len() && !self.ended() {
            match self.step(&bytes[taken.all..]) {
                Ok(TakenBytes { data, all }) => {
                    bytes.copy_within(taken.all..taken.all + data, taken.data);
                    (taken.data, taken.all) = (taken.data + data, taken.all + all);
                }
                Err(error) => return (taken, Err(error)),
            }
        }
        (taken, Ok(()))
    }

    /// Takes the data in front of the next byte of the frame, or that byte. `next` is not empty.
    fn step(&mut self, next: &[u8]) -> Result<TakenBytes, ChunkError> {
        match self.data(next.len()) {
            0 => self.byte(next[0]).map(|()| TakenBytes { data: 0, all: 1 }),
            data => Ok(TakenBytes { data, all: data }),
        }
    }

    /// Takes as many of the next `available` bytes as are data. 0 = the next byte is no data.
    fn data(&mut self, available: usize) -> usize {
        if self.at != ChunkPosition::Data {
            return 0;
        }
        let step = usize::try_from(self.size).map_or(available, |left| left.min(available));
        self.size -= step as u64;
        if self.size == 0 {
            self.at = ChunkPosition::DataCr;
        }
        step
    }

    fn byte(&mut self, b: u8) -> Result<(), ChunkError> {
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
                return Err(ChunkError::Size);
            }
            (ChunkPosition::SizeLf, b'\n') if self.size == 0 => ChunkPosition::TrailerStart,
            (ChunkPosition::SizeLf, b'\n') => ChunkPosition::Data,
            (ChunkPosition::Size { .. } | ChunkPosition::SizeLf, _) => {
                return Err(ChunkError::Size);
            }
            (ChunkPosition::DataCr, b'\r') => ChunkPosition::DataLf,
            (ChunkPosition::DataLf, b'\n') => ChunkPosition::Size { digits: 0 },
            (ChunkPosition::DataCr | ChunkPosition::DataLf, _) => return Err(ChunkError::End),
            _ => return self.trailer_byte(b),
        };
        Ok(())
    }

    fn extension_byte(&mut self, b: u8) -> Result<(), ChunkError> {
        self.extension_bytes += 1;
        let good = self.extension_bytes <= MAX_EXTENSION_BYTES && (!b.is_ascii_control() || b == b'\t');
        if good { Ok(()) } else { Err(ChunkError::Extension) }
    }

    fn trailer_byte(&mut self, b: u8) -> Result<(), ChunkError> {
        self.trailer_bytes += 1;
        self.at = match (self.at, b) {
            _ if self.trailer_bytes > MAX_TRAILER_BYTES => return Err(ChunkError::Trailer),
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
            _ => return Err(ChunkError::Trailer),
        };
        Ok(())
    }
}

fn hex_value(b: u8) -> u64 {
    char::from(b).to_digit(16).map_or(0, u64::from)
}
