//! Live view: status and shares once a second, as server-sent events. One text is made for all who
//! watch; while nobody does, none is made.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream::unfold;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::admin::problem::problem;
use crate::admin::report::{StatusReport, shares};
use crate::admin::state::AdminState;

/// Time between two events of a stream.
const EVERY: Duration = Duration::from_secs(1);
/// Age up to which an event is sent again: a little less than a step, for timers that fire early.
const FRESH: Duration = Duration::from_millis(900);
/// Longest life of a stream: it ends by itself before its connection does. The page opens the next.
const MAX_LIFE: Duration = Duration::from_secs(240);
/// Most streams at once.
const MAX_STREAMS: usize = 32;

/// The latest event, and the permits of those who watch.
struct LiveFeed {
    state: Arc<AdminState>,
    started: Instant,
    streams: Arc<Semaphore>,
    latest: Mutex<Option<MadeEvent>>,
}

struct MadeEvent {
    at: Instant,
    text: Bytes,
}

/// One who watches: an open stream.
struct LiveViewer {
    feed: Arc<LiveFeed>,
    ticks: Interval,
    ends: Instant,
    _permit: OwnedSemaphorePermit,
}

/// Route `GET /admin/v1/live`.
pub(super) fn router(state: Arc<AdminState>, started: Instant) -> Router {
    let streams = Arc::new(Semaphore::new(MAX_STREAMS));
    let feed = Arc::new(LiveFeed { state, started, streams, latest: Mutex::default() });
    Router::new().route("/admin/v1/live", get(move || async move { open(feed) }))
}

fn open(feed: Arc<LiveFeed>) -> Response {
    let Ok(permit) = Arc::clone(&feed.streams).try_acquire_owned() else {
        let message = format!("{MAX_STREAMS} live views are open already; close one, or try again later");
        return problem(StatusCode::SERVICE_UNAVAILABLE, &message);
    };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let live = LiveViewer { feed, ticks, ends: Instant::now() + MAX_LIFE, _permit: permit };
    let stream = unfold(live, |mut live| async move {
        let now = live.ticks.tick().await;
        (now < live.ends).then(|| (Ok::<_, Infallible>(live.feed.event()), live))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(stream)).into_response()
}

impl LiveFeed {
    /// The event of this second.
    fn event(&self) -> Bytes {
        let mut latest = self.latest.lock();
        match &*latest {
            Some(event) if event.at.elapsed() < FRESH => event.text.clone(),
            _ => {
                let text = self.make();
                *latest = Some(MadeEvent { at: Instant::now(), text: text.clone() });
                text
            }
        }
    }

    fn make(&self) -> Bytes {
        let status = StatusReport::of(&self.state, self.started.elapsed());
        let view = json!({ "status": status, "shares": shares::now(&self.state) });
        format!("event: view\ndata: {view}\n\n").into()
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use futures_util::StreamExt;
    use tower_service::Service;

    use super::*;
    use crate::admin::fixtures::state;
    use crate::config::watch::channel;
    use crate::telemetry::fixtures;

    async fn watch(router: &mut Router) -> Response {
        let request = Request::builder().uri("/admin/v1/live").body(Body::empty()).unwrap();
        router.call(request).await.unwrap()
    }

    async fn next(stream: &mut axum::body::BodyDataStream) -> String {
        String::from_utf8(stream.next().await.unwrap().unwrap().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn one_text_a_second_serves_all_who_watch_and_streams_are_bounded() {
        let telemetry = fixtures::telemetry(2);
        let state = Arc::new(state(&telemetry, channel().0));
        let mut router = router(state, Instant::now());
        let mut streams: Vec<_> = Vec::new();
        for _ in 0..MAX_STREAMS {
            let answer = watch(&mut router).await;
            assert_eq!(answer.status(), StatusCode::OK);
            streams.push(answer.into_body().into_data_stream());
        }
        assert_eq!(watch(&mut router).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let (first, second) = (next(&mut streams[0]).await, next(&mut streams[1]).await);
        assert!(first.starts_with("event: view\ndata: {") && first.ends_with("}\n\n"), "{first}");
        assert!(first.contains("\"shares\":[]") && first.contains("\"uptime_seconds\":"), "{first}");
        assert_eq!(first, second, "made once");
        assert_ne!(next(&mut streams[0]).await, first, "a second later it is another");
        drop(streams.pop());
        let events = streams.remove(0).count().await;
        assert_eq!(events, 238, "the rest of four minutes");
        assert_eq!(watch(&mut router).await.status(), StatusCode::OK);
    }
}
