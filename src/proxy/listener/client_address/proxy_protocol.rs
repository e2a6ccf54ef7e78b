//! PROXY protocol, versions 1 and 2: the header in which a load balancer tells the address of the
//! client, before the client's own bytes.

use std::net::SocketAddr;

use ppp::{HeaderResult, PartialResult, v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt};

/// First bytes of a header of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a header of version 2 before its addresses.
const FIXED: usize = 16;
/// Most bytes of addresses and extensions that a header of version 2 may have.
const MAX_REST: usize = 4096;
/// Most bytes of a header of version 1.
const MAX_LINE: usize = 107;

/// The load balancer sent no PROXY header, or a broken one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadProxyHeader;

/// Reads the header and nothing after it. Returns the client's address; `None` where the load
/// balancer speaks for itself, as in a health check.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<SocketAddr>, BadProxyHeader> {
    let mut bytes = vec![0; FIXED - 1];
    stream.read_exact(&mut bytes).await.map_err(|_| BadProxyHeader)?;
    if bytes.starts_with(SIGNATURE) {
        extend(stream, &mut bytes, 1).await?;
        let rest = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
        if rest > MAX_REST {
            return Err(BadProxyHeader);
        }
        extend(stream, &mut bytes, rest).await?;
    } else {
        while !bytes.ends_with(b"\n") && bytes.len() < MAX_LINE {
            extend(stream, &mut bytes, 1).await?;
        }
    }
    parse(&bytes)
}

async fn extend(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
    more: usize,
) -> Result<(), BadProxyHeader> {
    let at = bytes.len();
    bytes.resize(at + more, 0);
    stream.read_exact(&mut bytes[at..]).await.map(drop).map_err(|_| BadProxyHeader)
}

fn parse(bytes: &[u8]) -> Result<Option<SocketAddr>, BadProxyHeader> {
    let header = HeaderResult::parse(bytes);
    if header.is_incomplete() {
        return Err(BadProxyHeader);
    }
    match header {
        HeaderResult::V1(Ok(header)) => Ok(match header.addresses {
            v1::Addresses::Tcp4(tcp) => Some((tcp.source_address, tcp.source_port).into()),
            v1::Addresses::Tcp6(tcp) => Some((tcp.source_address, tcp.source_port).into()),
            v1::Addresses::Unknown => None,
        }),
        HeaderResult::V2(Ok(header)) if header.command == v2::Command::Local => Ok(None),
        HeaderResult::V2(Ok(header)) => Ok(match header.addresses {
            v2::Addresses::IPv4(tcp) => Some((tcp.source_address, tcp.source_port).into()),
            v2::Addresses::IPv6(tcp) => Some((tcp.source_address, tcp.source_port).into()),
            v2::Addresses::Unix(_) | v2::Addresses::Unspecified => None,
        }),
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => Err(BadProxyHeader),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the header says, and what is left for the client's connection.
    fn of(mut bytes: &[u8]) -> (Result<Option<SocketAddr>, BadProxyHeader>, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let found = runtime.block_on(read(&mut bytes));
        (found, bytes.to_vec())
    }

    fn version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest, b"GET /"].concat()
    }

    #[test]
    fn both_versions_tell_the_client_and_leave_its_bytes() {
        let client = "192.0.2.7:4000".parse().ok();
        let (found, left) = of(b"PROXY TCP4 192.0.2.7 10.0.0.1 4000 443\r\nGET /");
        assert_eq!((found, &left[..]), (Ok(client), &b"GET /"[..]));
        let addresses = [192, 0, 2, 7, 10, 0, 0, 1, 0x0f, 0xa0, 1, 187, 4, 0, 1, 9];
        let (found, left) = of(&version_2(0x21, 0x11, &addresses));
        assert_eq!((found, &left[..]), (Ok(client), &b"GET /"[..]), "with an extension");
        let (found, _) = of(b"PROXY TCP6 2001:db8::7 2001:db8::1 4000 443\r\n");
        assert_eq!(found, Ok("[2001:db8::7]:4000".parse().ok()));
    }

    #[test]
    fn a_load_balancer_may_speak_for_itself() {
        for bytes in [b"PROXY UNKNOWN\r\nGET /".to_vec(), version_2(0x20, 0, &[])] {
            assert_eq!(of(&bytes), (Ok(None), b"GET /".to_vec()));
        }
    }

    #[test]
    fn what_is_no_header_is_refused_after_a_bounded_number_of_bytes() {
        let long = [b"PROXY TCP4 ".to_vec(), vec![b'1'; 500]].concat();
        for bytes in [
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"PROXY TCP4 192.0.2.7 10.0.0.1 4000\r\n",
            b"PROXY",
            b"",
            &long,
            &version_2(0x21, 0x11, &[1, 2, 3]),
            &version_2(0x21, 0x11, &vec![0; MAX_REST + 1]),
            &SIGNATURE[..],
        ] {
            let (found, left) = of(bytes);
            assert_eq!(found, Err(BadProxyHeader), "{bytes:?}");
            assert!(bytes.len() - left.len() <= MAX_LINE.max(FIXED + MAX_REST));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(start in 0_usize..3, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let start = [&b""[..], b"PROXY ", SIGNATURE][start];
            let _any = of(&[start, &bytes].concat());
        }
    }
}
