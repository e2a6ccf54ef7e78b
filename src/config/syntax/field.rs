//! The place of a value inside the file, such as `pools.llama.replicas[0].url`.

use std::fmt;

/// One step from a value to a value inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) enum FieldStep {
    /// The value of this key.
    Key(Box<str>),
    /// The element at this index.
    Index(usize),
}

/// The steps from the top of the file to a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::config) struct FieldPath(Vec<FieldStep>);

impl FieldPath {
    /// A key at the top of the file.
    pub(in crate::config) fn top(key: &str) -> Self {
        Self::default().key(key)
    }

    /// The field that these steps lead to.
    pub(in crate::config) fn from_steps(steps: impl IntoIterator<Item = FieldStep>) -> Self {
        Self(steps.into_iter().collect())
    }

    /// The value of `key` inside this one.
    pub(in crate::config) fn key(&self, key: &str) -> Self {
        self.then(FieldStep::Key(key.into()))
    }

    /// The element `index` of this one.
    pub(in crate::config) fn index(&self, index: usize) -> Self {
        self.then(FieldStep::Index(index))
    }

    /// The steps from the top.
    pub(in crate::config) fn steps(&self) -> &[FieldStep] {
        &self.0
    }

    /// Whether this is `other` or inside it.
    pub(in crate::config) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    fn then(&self, step: FieldStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                FieldStep::Index(index) => write!(f, "[{index}]")?,
                FieldStep::Key(key) if !is_plain(key) => write!(f, "[{key:?}]")?,
                FieldStep::Key(key) if depth == 0 => f.write_str(key)?,
                FieldStep::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

/// Whether a key can stand between dots without being taken for two keys.
fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_the_way_to_the_value() {
        let field = FieldPath::top("models").key("gpt-4.1").key("aliases").index(2);
        assert_eq!(field.to_string(), r#"models["gpt-4.1"].aliases[2]"#);
        assert!(field.is_within(&FieldPath::top("models").key("gpt-4.1")));
        assert!(!FieldPath::top("models").is_within(&field));
    }
}
