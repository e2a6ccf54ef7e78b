//! Overload: the scaler answers from its first moment, and while the data path is full.

use std::net::SocketAddr;
use std::time::Duration;

use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::Instant;

use super::setup::{Keda, METRIC, file, rig};
use crate::support::client::Call;
use crate::support::gateway::{Rig, TENANT, chat, soon, until};

const MAIN: &[(&str, &str)] = &[("pool", "main")];

#[tokio::test]
async fn the_first_call_of_a_new_gateway_is_answered() {
    let rig = rig(Vec::new(), &[], "").await;
    let begun = Instant::now();
    let keda = Keda::of(&rig).await;
    assert_eq!(keda.specs(MAIN).await.unwrap().len(), 1);
    assert_eq!(keda.desired().await, 0, "what is known is there before the port opens");
    println!("connection, spec and value: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
}

#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    let file = file(&[], "").replacen("server: {", "server: {head_timeout: 2s, ", 1);
    let rig = Rig::with_file(&file, Vec::new(), [TENANT]).await;
    let address = rig.gateway.scale_address().unwrap();
    let mut silent = Vec::new();
    for n in 0..300_u16 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 10 + u8::try_from(n / 30).unwrap()], 0))).unwrap();
        silent.push(socket.connect(address).await.unwrap());
    }
    let other = TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = soon("a connection", other.connect(address)).await.unwrap();
    other.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    soon("the server's settings", other.read_u8()).await.unwrap();
    for mut held in silent {
        let _reset = soon("the end of a silent connection", held.read_to_end(&mut Vec::new())).await;
    }
    assert_eq!(Keda::of(&rig).await.desired().await, 0, "its address has places again");
}

/// What blocks every thread of the data path, and thereby shows that the
/// scaler needs none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_path_that_stands_still_does_not_stop_the_scaler() {
    // So slow that the queue stays full for the whole test.
    let slow = SimOptions { speed: 0.02, ..SimOptions::default() };
    let engines = start_fleet(vec![slow]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = rig(engines, &urls, "").await;
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let call = Call::post("/v1/chat/completions", &chat(200, true)).key(rig.key(TENANT));
            tokio::spawn(call.send(rig.address()))
        })
        .collect();
    until("the queue is full", || rig.waiting() > 100).await;
    let address = rig.gateway.scale_address().unwrap();
    let (told, tell) = std::sync::mpsc::channel();
    // The client has a thread of its own as well.
    let asks = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let keda = Keda::at(address).await;
            tell_when(&told, &keda).await
        })
    });
    tell.recv().unwrap();
    // Both threads of the gateway's runtime, until the client is done.
    let stuck: Vec<_> =
        (0..2).map(|_| tokio::spawn(async { std::thread::sleep(Duration::from_millis(300)) })).collect();
    std::thread::sleep(Duration::from_millis(300));
    let mut times = asks.join().unwrap();
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100];
    println!("{} polls, p99 {:.1} ms", times.len(), p99.as_secs_f64() * 1e3);
    assert!(p99 < Duration::from_secs(2), "{p99:?}");
    for task in stuck {
        task.await.unwrap();
    }
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Polls as KEDA does; says when it begins.
async fn tell_when(told: &std::sync::mpsc::Sender<()>, keda: &Keda) -> Vec<Duration> {
    while !keda.is_active(MAIN).await.unwrap() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    told.send(()).unwrap();
    let mut times = Vec::new();
    for _ in 0..200 {
        let begun = Instant::now();
        assert_eq!(keda.specs(MAIN).await.unwrap().len(), 1);
        assert_eq!(keda.values(MAIN, METRIC).await.unwrap().len(), 1);
        assert!(keda.is_active(MAIN).await.unwrap());
        times.push(begun.elapsed());
    }
    times
}
