//! Stream reports: what a gateway tells its scheduler of its streams, ten times a second for each
//! engine.

use std::time::Duration;

use crate::engine::RequestId;
use crate::world::router::{Input, ReplicaIndex};
use penstock_core::model::event::ItlSample;

/// What a gateway has seen of an engine's streams since the last report.
#[derive(Debug, Clone, Copy, Default)]
struct StreamSample {
    gaps: ItlSample,
    /// Whether tokens came.
    heard: bool,
    /// Streams that wait for their clients, as last reported.
    told_paused: u32,
}

/// A stream whose client does not read.
#[derive(Debug, Clone, Copy)]
struct UnreadStream {
    request: RequestId,
    replica: ReplicaIndex,
    /// Place of its gateway and engine among the samples.
    index: usize,
}

/// Samples of each gateway and engine.
#[derive(Debug)]
pub(in crate::world) struct StreamReports {
    engines: usize,
    samples: Vec<StreamSample>,
    unread: Vec<UnreadStream>,
}

impl StreamReports {
    pub(in crate::world) fn new(gateways: usize, engines: usize) -> Self {
        Self { engines, samples: vec![StreamSample::default(); gateways * engines], unread: Vec::new() }
    }

    /// Notes that tokens of a stream came.
    pub(in crate::world) fn note_bytes(&mut self, gateway: usize, replica: ReplicaIndex) {
        self.samples[gateway * self.engines + replica].heard = true;
    }

    /// Notes the time between the tokens before and these `tokens`.
    pub(in crate::world) fn note_gap(
        &mut self,
        gateway: usize,
        replica: ReplicaIndex,
        tokens: u32,
        gap: Duration,
    ) {
        let sample = &mut self.samples[gateway * self.engines + replica].gaps;
        sample.gaps += u64::from(tokens);
        sample.total += gap;
    }

    /// Notes that the client of a stream stops reading.
    pub(in crate::world) fn note_unread(
        &mut self,
        gateway: usize,
        replica: ReplicaIndex,
        request: RequestId,
    ) {
        self.unread.push(UnreadStream { request, replica, index: gateway * self.engines + replica });
    }

    /// Takes the inputs of all gateways, each with the gateway's number. `is_unread` tells whether the
    /// stream of a request at a replica still waits for its client.
    pub(in crate::world) fn take(
        &mut self,
        is_unread: impl Fn(RequestId, ReplicaIndex) -> bool,
    ) -> Vec<(usize, Input<'static>)> {
        self.unread.retain(|stream| is_unread(stream.request, stream.replica));
        let mut inputs = Vec::new();
        for (index, seen) in self.samples.iter_mut().enumerate() {
            let (gateway, replica) = (index / self.engines, index % self.engines);
            let unread = self.unread.iter().filter(|stream| stream.index == index).count();
            let streams = u32::try_from(unread).unwrap_or(u32::MAX);
            let sample = std::mem::take(&mut seen.gaps);
            let heard = std::mem::take(&mut seen.heard);
            if std::mem::replace(&mut seen.told_paused, streams) != streams {
                inputs.push((gateway, Input::StreamsPaused { replica, streams }));
            }
            if sample.gaps > 0 {
                inputs.push((gateway, Input::ItlSampled { replica, sample }));
            } else if heard {
                inputs.push((gateway, Input::BytesReceived { replica }));
            }
        }
        inputs
    }
}
