//! The file as a tree of values that know their lines.

use crate::config::syntax::field::{FieldPath, FieldStep};

/// A place in the text, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) struct TextPosition {
    pub(in crate::config) line: u32,
    /// Column, in characters.
    pub(in crate::config) column: u32,
}

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::config) struct TreeNode {
    /// Where it begins.
    pub(in crate::config) at: TextPosition,
    /// What it is.
    pub(in crate::config) value: TreeValue,
    /// Left out of what is decoded, because it was reported already.
    pub(in crate::config) dropped: bool,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::config) enum TreeValue {
    /// Nothing, as in `key:`.
    Null,
    /// A number or boolean: its meaning, and its text for whoever wants a
    /// string.
    Plain(PlainScalar, String),
    Text(String),
    List(Vec<TreeNode>),
    /// A map, in the order of the file.
    Map(Vec<TreeEntry>),
}

/// A value that is not a string.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::config) enum PlainScalar {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number from zero up.
    Unsigned(u64),
    /// A whole number below zero.
    Signed(i64),
    /// Any other number.
    Float(f64),
}

/// One key of a map.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::config) struct TreeEntry {
    pub(in crate::config) key: String,
    /// Where the key stands.
    pub(in crate::config) at: TextPosition,
    /// Its value.
    pub(in crate::config) node: TreeNode,
}

impl TreeNode {
    /// Where to point for `field`: at a scalar itself, at the key of a map or
    /// list, and for what is missing at the nearest thing around it.
    pub(in crate::config) fn locate(&self, field: &FieldPath) -> TextPosition {
        let mut node = self;
        let mut mark = self.at;
        for step in field.steps() {
            match (step, &node.value) {
                (FieldStep::Key(key), TreeValue::Map(entries)) => {
                    let Some(entry) = entries.iter().find(|entry| *entry.key == **key) else { break };
                    node = &entry.node;
                    mark = if node.is_scalar() { node.at } else { entry.at };
                }
                (FieldStep::Index(index), TreeValue::List(nodes)) => {
                    let Some(element) = nodes.get(*index) else { break };
                    node = element;
                    mark = node.at;
                }
                _ => break,
            }
        }
        mark
    }

    /// Takes `field` out of what is decoded. False when there is no such
    /// field, or it is already out.
    pub(in crate::config) fn drop_field(&mut self, field: &FieldPath) -> bool {
        let Some(node) = self.find(field.steps()) else { return false };
        !std::mem::replace(&mut node.dropped, true)
    }

    /// Gives the key at the end of `field` another name, unless its map has
    /// that name already.
    pub(in crate::config) fn rename(&mut self, field: &FieldPath, name: &str) -> bool {
        let Some((FieldStep::Key(old), parent)) = field.steps().split_last() else { return false };
        let Some(TreeNode { value: TreeValue::Map(entries), .. }) = self.find(parent) else { return false };
        if entries.iter().any(|entry| entry.key == name) {
            return false;
        }
        let entry = entries.iter_mut().find(|entry| *entry.key == **old);
        entry.map(|entry| name.clone_into(&mut entry.key)).is_some()
    }

    /// Takes entries out of a map for good.
    pub(in crate::config) fn drop_entries(&mut self, is_out: impl Fn(&str) -> bool) {
        if let TreeValue::Map(entries) = &mut self.value {
            entries.retain(|entry| !is_out(&entry.key));
        }
    }

    fn find(&mut self, steps: &[FieldStep]) -> Option<&mut Self> {
        let Some((first, rest)) = steps.split_first() else { return Some(self) };
        let child = match (first, &mut self.value) {
            (FieldStep::Key(key), TreeValue::Map(entries)) => {
                &mut entries.iter_mut().find(|entry| *entry.key == **key)?.node
            }
            (FieldStep::Index(index), TreeValue::List(nodes)) => nodes.get_mut(*index)?,
            _ => return None,
        };
        child.find(rest)
    }

    fn is_scalar(&self) -> bool {
        matches!(self.value, TreeValue::Plain(..) | TreeValue::Text(_))
    }
}
