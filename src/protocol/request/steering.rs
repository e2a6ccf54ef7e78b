//! Steering fields: fields of a request's body by which a client could steer an engine past the
//! gateway, or reach what other clients left there. A request with one of them is refused.

const PAST_THE_GATEWAY: &str = "is not taken from clients: it steers the engine. Leave it out.";
const NO_BACKGROUND: &str =
    "must be false: an answer is sent when it is ready, and cannot be fetched here later. Leave it out.";
const NO_STORE: &str = "is not supported: the engine that has the earlier response may not be the next one. \
                        Send the whole conversation in `input`.";
/// By this name an engine finds a request again, to end it or to hold its response.
const OWN_ID: &str = "is not taken from clients: it names the request inside the engine. Send the header \
                      `x-request-id`, or leave it out.";

/// The steering fields, and what a client is told about each.
const FIELDS: [(&str, &str); 10] = [
    ("kv_transfer_params", PAST_THE_GATEWAY),
    ("ec_transfer_params", PAST_THE_GATEWAY),
    ("bootstrap_host", PAST_THE_GATEWAY),
    ("bootstrap_port", PAST_THE_GATEWAY),
    ("bootstrap_room", PAST_THE_GATEWAY),
    ("data_parallel_rank", PAST_THE_GATEWAY),
    ("custom_logit_processor", PAST_THE_GATEWAY),
    ("background", NO_BACKGROUND),
    ("previous_response_id", NO_STORE),
    ("request_id", OWN_ID),
];

/// The steering field of this name and what a client is told about it. `None` if the field steers
/// nothing, or `value`, its JSON, turns it off.
pub(crate) fn refusal(name: &str, value: &str) -> Option<(&'static str, &'static str)> {
    let field = FIELDS.iter().find(|(known, _)| *known == name)?;
    let is_off = value == "null" || value == "false";
    (!is_off).then_some(*field)
}
