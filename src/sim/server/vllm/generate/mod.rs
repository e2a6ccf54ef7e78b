//! Generation routes: chats, completions, messages, responses and audio.

pub(super) mod audio;
pub(super) mod chat;
pub(super) mod completion;
pub(super) mod messages;
pub(super) mod params;
pub(super) mod prompt;
pub(super) mod responses;
pub(super) mod session;
