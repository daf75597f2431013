//! A stored tensor that is a part of a packed matrix.

use crate::checkpoint::{Source, TensorInfo};
use crate::mem::Stored;
use crate::{Error, Result};

/// A stored tensor that is a part of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Its name.
    pub(super) name: String,
    /// Its dimensions.
    pub(super) shape: Vec<usize>,
    /// Its element type.
    pub(super) stored: Stored,
    /// How many there are.
    pub(super) elements: usize,
}

impl Part {
    /// The shape of a matrix.
    pub(super) fn matrix(&self) -> Result<[usize; 2]> {
        match self.shape[..] {
            [rows, cols] => Ok([rows, cols]),
            _ => Err(Error::tensor(&self.name, format!("shape {:?}; a matrix is expected", self.shape))),
        }
    }

    /// Refuses another element type than these.
    pub(super) fn is_one_of(&self, allowed: &[Stored]) -> Result<()> {
        if allowed.contains(&self.stored) {
            return Ok(());
        }
        let allowed = allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(Error::tensor(&self.name, format!("element type {}; allowed: {allowed}", self.stored)))
    }
}

/// The tensor of this name.
///
/// # Errors
/// `Tensor` where it is missing.
pub(super) fn part(source: &dyn Source, name: &str) -> Result<Part> {
    let found = optional(source, name);
    found.ok_or_else(|| Error::tensor(name, "is missing; the packed weight next to it needs it"))
}

/// The tensor of this name, where it is there.
pub(super) fn optional(source: &dyn Source, name: &str) -> Option<Part> {
    let TensorInfo { name, shape, stored } = source.find(name)?.clone();
    let elements = shape.iter().product();
    Some(Part { name, shape, stored, elements })
}
