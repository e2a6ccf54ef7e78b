//! Partial tokens: the tokens of a partial answer, as the engine that continues the answer counts them.

use bytes::Bytes;
use http::HeaderMap;

use crate::config::settings::UpstreamLimits;
use crate::protocol::request::edit::{EditedBody, json_string};
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::proxy::upstream::UpstreamReplica;

/// A copy of `so_far` whose tokens the next engine has counted. `name` is the model's name there. The
/// number of events would be too low, because engines put several tokens into one event.
pub(super) async fn counted(
    so_far: &PartialAnswer,
    name: &str,
    headers: &HeaderMap,
    replica: &UpstreamReplica,
    limits: &UpstreamLimits,
) -> PartialAnswer {
    let mut so_far = so_far.clone();
    if so_far.is_resumed() && !so_far.is_counted() {
        let count = match so_far.prompt_text() {
            "" => Some(0),
            text => count(text, name, headers, replica, limits).await,
        };
        count.into_iter().for_each(|count| so_far.set_tokens(count));
    }
    so_far
}

async fn count(
    text: &str,
    name: &str,
    headers: &HeaderMap,
    replica: &UpstreamReplica,
    limits: &UpstreamLimits,
) -> Option<u64> {
    let (name, text) = (json_string(name), json_string(text));
    let body = format!("{{\"model\":{name},\"prompt\":{text},\"add_special_tokens\":false}}");
    replica.count_tokens(headers, EditedBody::from(Bytes::from(body)), limits).await
}
