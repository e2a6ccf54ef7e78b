//! Hostile clients of an overload. They come from another address of this machine than the others.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Where they come from.
const FROM: &str = "127.0.0.2:0";
/// Clients of each kind that hold a connection for as long as they may.
const HOLDERS: usize = 20;
/// How long one waits for an answer that it reads.
const PATIENCE: Duration = Duration::from_secs(10);

/// A way to do harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    NoKey,
    WrongKey,
    ManyChoices,
    HugeBody,
    LeavesAtOnce,
    Drips,
    DoesNotRead,
}

impl Harm {
    /// Requests a second; the last two kinds hold their connections instead.
    const FLOODS: [(Self, f64); 5] = [
        (Self::NoKey, 50.0),
        (Self::WrongKey, 50.0),
        (Self::ManyChoices, 20.0),
        (Self::HugeBody, 1.0),
        (Self::LeavesAtOnce, 50.0),
    ];
}

/// A gateway, and a key that hostile clients have.
#[derive(Debug, Clone)]
pub(super) struct Victim {
    pub(super) address: SocketAddr,
    pub(super) key: String,
}

/// Does all kinds of harm until it is dropped.
pub(super) fn attack(victim: &Victim) -> JoinSet<()> {
    let mut attackers = JoinSet::new();
    for (harm, rate) in Harm::FLOODS {
        let victim = victim.clone();
        attackers.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let victim = victim.clone();
                open.spawn(async move { timeout(PATIENCE, victim.hit(harm)).await });
                while open.try_join_next().is_some() {}
                sleep(Duration::from_secs_f64(1.0 / rate)).await;
            }
        });
    }
    for harm in [Harm::Drips, Harm::DoesNotRead] {
        for _ in 0..HOLDERS {
            let victim = victim.clone();
            attackers.spawn(async move {
                loop {
                    // The gateway ends it at its own time.
                    let _ended = victim.hit(harm).await;
                    sleep(Duration::from_millis(100)).await;
                }
            });
        }
    }
    attackers
}

impl Victim {
    async fn hit(&self, harm: Harm) -> Result<()> {
        let prompt = "x ".repeat(200);
        let more = match harm {
            Harm::ManyChoices => r#","n":100000"#,
            Harm::DoesNotRead => r#","stream":true,"max_tokens":4000,"logprobs":true,"top_logprobs":20"#,
            _ => r#","stream":true,"max_tokens":200"#,
        };
        let body = format!(r#"{{"model":"sim","messages":[{{"role":"user","content":"{prompt}"}}]{more}}}"#);
        let key = match harm {
            Harm::NoKey => String::new(),
            Harm::WrongKey => format!("authorization: Bearer {}x\r\n", self.key),
            _ => format!("authorization: Bearer {}\r\n", self.key),
        };
        let length = if harm == Harm::HugeBody { 33 << 20 } else { body.len() };
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{key}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        let mut stream = self.connect(harm).await?;
        stream.write_all(head.as_bytes()).await?;
        match harm {
            Harm::HugeBody => {
                let piece = vec![b' '; 1 << 16];
                for _ in 0..length / piece.len() {
                    stream.write_all(&piece).await?;
                }
            }
            Harm::Drips => {
                for byte in body.bytes() {
                    stream.write_all(&[byte]).await?;
                    sleep(Duration::from_secs(1)).await;
                }
            }
            _ => stream.write_all(body.as_bytes()).await?,
        }
        match harm {
            Harm::LeavesAtOnce => {}
            Harm::DoesNotRead => sleep(Duration::from_secs(600)).await,
            _ => _ = stream.read(&mut [0; 256]).await?,
        }
        Ok(())
    }

    async fn connect(&self, harm: Harm) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(FROM.parse()?).context("no second address of loopback")?;
        if harm == Harm::DoesNotRead {
            socket.set_recv_buffer_size(4096)?;
        }
        Ok(socket.connect(self.address).await?)
    }
}
