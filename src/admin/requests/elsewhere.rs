//! Requests of other gateways: what they said of one that this gateway does not remember.

use serde_json::Value;

use crate::cluster::FleetAnswer;
use crate::telemetry::request_history::MAX_STORIES;

/// The request as the gateway that has it tells it, with the field `gateway`: that gateway's name.
///
/// # Errors
/// Nobody has it: why, and who could not say.
pub(in crate::admin) fn answer(id: &str, others: FleetAnswer) -> Result<Value, String> {
    let unsure = match others {
        FleetAnswer::Found(gateway, mut view) if view.is_object() => {
            view["gateway"] = gateway.into();
            return Ok(view);
        }
        FleetAnswer::NotFound(silent) if !silent.is_empty() => {
            format!("; no answer came from {}", silent.join(", "))
        }
        FleetAnswer::NotAsked(why) => format!("; the other gateways could not be asked: {why}"),
        FleetAnswer::Found(..) | FleetAnswer::NotFound(_) | FleetAnswer::Alone => String::new(),
    };
    Err(format!(
        "no request `{id}` is remembered: all that wait or run are, and the last {MAX_STORIES} that ended; \
         the id is in the answer's header x-request-id and in the log{unsure}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_gateway_that_has_it_is_named_and_so_is_who_could_not_say() {
        let found = FleetAnswer::Found("two:8080".to_owned(), json!({ "state": "running" }));
        assert_eq!(answer("r", found), Ok(json!({ "state": "running", "gateway": "two:8080" })));
        let message = |others| answer("r", others).unwrap_err();
        assert!(message(FleetAnswer::NotFound(Vec::new())).ends_with("and in the log"));
        assert!(message(FleetAnswer::Found("x".to_owned(), json!(3))).ends_with("and in the log"));
        let silent = FleetAnswer::NotFound(vec!["a:1".to_owned(), "b:2".to_owned()]);
        assert!(message(silent).ends_with("; no answer came from a:1, b:2"));
        let away = FleetAnswer::NotAsked("the store is away: timed out".to_owned());
        assert!(message(away).ends_with("could not be asked: the store is away: timed out"));
    }
}
