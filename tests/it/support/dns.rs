//! DNS server on loopback, over UDP and TCP. The test sets the answer for each name.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SOA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What the server says of one name and type.
#[derive(Clone)]
pub(crate) enum Says {
    /// Records that hold for so many seconds.
    Records(Vec<RData>, u32),
    /// The same, but over UDP only that the answer is too long.
    TooLongForUdp(Vec<RData>, u32),
    /// Only this code.
    Code(ResponseCode),
}

/// One question that the server got.
pub(crate) struct Asked {
    pub(crate) at: Instant,
    pub(crate) name: String,
    pub(crate) kind: RecordType,
    pub(crate) tcp: bool,
}

#[derive(Default)]
struct Zone {
    says: HashMap<(String, RecordType), Says>,
    asked: Vec<Asked>,
}

/// The running server; it ends when it is dropped.
pub(crate) struct Names {
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    _tasks: JoinSet<()>,
}

pub(crate) fn a(text: &str) -> RData {
    RData::A(A(text.parse().unwrap()))
}

pub(crate) fn aaaa(text: &str) -> RData {
    RData::AAAA(AAAA(text.parse().unwrap()))
}

pub(crate) fn srv(priority: u16, host: &str, port: u16) -> RData {
    RData::SRV(SRV::new(priority, 1, port, Name::from_str(host).unwrap()))
}

impl Names {
    pub(crate) async fn start() -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let zone = Arc::<Mutex<Zone>>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(over_udp(udp, Arc::clone(&zone)));
        tasks.spawn(over_tcp(tcp, Arc::clone(&zone)));
        Self { address, zone, _tasks: tasks }
    }

    /// From now on the server says this.
    pub(crate) fn say(&self, name: &str, kind: RecordType, says: Says) {
        self.zone.lock().unwrap().says.insert((name.to_owned(), kind), says);
    }

    /// The name is no more.
    pub(crate) fn forget(&self, name: &str) {
        self.zone.lock().unwrap().says.retain(|(known, _), _| known != name);
    }

    /// The questions since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.zone.lock().unwrap().asked)
    }
}

async fn over_udp(socket: UdpSocket, zone: Arc<Mutex<Zone>>) {
    let mut buffer = [0; 4096];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        let answer = answer(&buffer[..length], false, &zone);
        let _sent = socket.send_to(&answer, peer).await;
    }
}

async fn over_tcp(listener: TcpListener, zone: Arc<Mutex<Zone>>) {
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let zone = Arc::clone(&zone);
        connections.spawn(async move {
            while let Ok(length) = stream.read_u16().await {
                let mut question = vec![0; usize::from(length)];
                if stream.read_exact(&mut question).await.is_err() {
                    return;
                }
                let answer = answer(&question, true, &zone);
                let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                let _sent = stream.write_all(&[&length[..], &answer].concat()).await;
            }
        });
    }
}

fn answer(question: &[u8], tcp: bool, zone: &Mutex<Zone>) -> Vec<u8> {
    let question = Message::from_vec(question).unwrap();
    let query = question.queries[0].clone();
    let (name, kind) = (query.name().to_string(), query.query_type());
    let mut zone = zone.lock().unwrap();
    zone.asked.push(Asked { at: Instant::now(), name: name.clone(), kind, tcp });
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    answer.metadata.authoritative = true;
    answer.metadata.recursion_available = true;
    answer.add_query(query.clone());
    match zone.says.get(&(name.clone(), kind)) {
        Some(Says::TooLongForUdp(..)) if !tcp => answer.metadata.truncation = true,
        Some(Says::Records(data, ttl) | Says::TooLongForUdp(data, ttl)) => {
            answer.add_answers(
                data.iter().map(|data| Record::from_rdata(query.name().clone(), *ttl, data.clone())),
            );
        }
        Some(Says::Code(code)) => answer.metadata.response_code = *code,
        None => {
            let root = Name::root();
            let soa = SOA::new(root.clone(), root.clone(), 1, 60, 60, 60, 0);
            answer.add_authority(Record::from_rdata(root, 0, RData::SOA(soa)));
            if !zone.says.keys().any(|(known, _)| *known == name) {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
        }
    }
    answer.to_vec().unwrap()
}
