//! Peer service: streams this gateway's latest report to its peers.

use std::sync::Arc;

use futures_util::stream::unfold;
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status};

use crate::core::autoscale::peers::MAX_PEERS;
use crate::scaler::proto::gateways::WatchRequest;
use crate::scaler::proto::gateways::gateways_server::{Gateways, GatewaysServer};
use crate::scaler::rpc::answers::Answers;

use super::wire::Report;
use crate::scaler::peers::exchange::PeerExchange;

/// Most streams open at once. Each peer has one, and may open another before the gateway knows that
/// the first is lost.
const STREAMS: usize = 2 * MAX_PEERS;

#[derive(Debug)]
pub(in crate::scaler) struct PeerService {
    exchange: Arc<PeerExchange>,
    streams: Arc<Semaphore>,
}

pub(in crate::scaler) fn service(exchange: &Arc<PeerExchange>) -> GatewaysServer<PeerService> {
    let watches = PeerService { exchange: Arc::clone(exchange), streams: Arc::new(Semaphore::new(STREAMS)) };
    GatewaysServer::new(watches).max_decoding_message_size(1024)
}

#[tonic::async_trait]
impl Gateways for PeerService {
    type WatchStream = Answers<Report>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many gateways watch"))?;
        let mut reports = self.exchange.report.subscribe();
        reports.mark_changed();
        let stream = unfold(Some((reports, permit)), |open| async move {
            let (mut reports, permit) = open?;
            let report = next(&mut reports).await?;
            let leaving = report.leaving;
            Some((Ok(report), (!leaving).then_some((reports, permit))))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// The next report that has a sender. The initial, empty report has none.
async fn next(reports: &mut watch::Receiver<Arc<Report>>) -> Option<Report> {
    loop {
        reports.changed().await.ok()?;
        let report = Report::clone(&reports.borrow_and_update());
        if report.from.is_some() {
            return Some(report);
        }
    }
}
