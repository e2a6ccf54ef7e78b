//! Colours on a terminal.

use crate::config::secret::{MachineSecrets, SecretSource as _};

/// Whether colours are wanted: <https://no-color.org>.
pub(in crate::app) fn has_colour() -> bool {
    MachineSecrets.env("NO_COLOR").is_none_or(|value| value.is_empty())
}
