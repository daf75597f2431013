//! The one implementation of [`Source`] over files: a sorted list of tensors in one or more of them.

use super::packed::mxfp4;
use super::{Source, TensorInfo, storage::Storage};
use crate::{Error, Result};
use std::borrow::Cow;

/// A tensor and the byte range that holds it.
pub(super) struct Placed {
    /// Name, shape, type.
    pub(super) info: TensorInfo,
    /// Which of the files.
    pub(super) shard: usize,
    /// First byte in that file.
    pub(super) start: u64,
    /// One past the last byte.
    pub(super) end: u64,
    /// How the elements lie in the range, if not one after the other.
    pub(super) view: Option<View>,
}

/// How elements lie that are not one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum View {
    /// A strided window; every element lies inside the range.
    Strided {
        /// Bytes of an element.
        size: usize,
        /// Bytes from one index to the next, per dimension.
        strides: Vec<usize>,
    },
    /// GGUF's blocks of MXFP4, which are read as the blocks of Q5_0 with the same values.
    Mxfp4,
}

impl View {
    /// The elements one after the other, last dimension fastest.
    fn gather(&self, info: &TensorInfo, from: &[u8]) -> Result<Vec<u8>> {
        match self {
            View::Strided { size, strides } => {
                let mut to = Vec::with_capacity(info.elements() * size);
                strided(*size, (&info.shape, strides), from, &mut to);
                Ok(to)
            }
            View::Mxfp4 => mxfp4::of_gguf(&info.name, from),
        }
    }
}

fn strided(size: usize, (shape, strides): (&[usize], &[usize]), from: &[u8], to: &mut Vec<u8>) {
    match (shape, strides) {
        ([n], [stride]) if *stride == size => to.extend_from_slice(&from[..n * size]),
        ([n], [stride]) => {
            for i in 0..*n {
                to.extend_from_slice(&from[i * stride..i * stride + size]);
            }
        }
        ([n, shape @ ..], [stride, strides @ ..]) => {
            for i in 0..*n {
                strided(size, (shape, strides), &from[i * stride..], to);
            }
        }
        _ => to.extend_from_slice(&from[..size]),
    }
}

/// Where a tensor lies.
struct Place {
    shard: usize,
    start: u64,
    end: u64,
    view: Option<View>,
}

/// Tensors in files.
pub(super) struct Tensors {
    file: String,
    shards: Vec<Storage>,
    infos: Vec<TensorInfo>,
    /// Parallel to `infos`.
    places: Vec<Place>,
    notes: Vec<String>,
}

impl Tensors {
    /// Sorts by name; a name in two places is an error that names both files.
    pub(super) fn new(file: String, shards: Vec<Storage>, mut placed: Vec<Placed>) -> Result<Self> {
        placed.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        for pair in placed.windows(2) {
            let [a, b] = pair else { continue };
            if a.info.name == b.info.name {
                let what = if a.shard == b.shard {
                    format!("appears twice in {}", shards[a.shard].name())
                } else {
                    format!("is in two files, {} and {}", shards[a.shard].name(), shards[b.shard].name())
                };
                return Err(Error::tensor(&a.info.name, what));
            }
        }
        let (mut infos, mut places) = (Vec::with_capacity(placed.len()), Vec::with_capacity(placed.len()));
        for Placed { info, shard, start, end, view } in placed {
            infos.push(info);
            places.push(Place { shard, start, end, view });
        }
        let packed = places.iter().filter(|place| place.view == Some(View::Mxfp4)).count();
        let note = || format!("{packed} matrices of MXFP4 are multiplied from Q5_0: the same values");
        let notes = if packed > 0 { vec![note()] } else { Vec::new() };
        Ok(Self { file, shards, infos, places, notes })
    }

    fn place(&self, name: &str) -> Option<(&TensorInfo, &Place)> {
        let at = self.infos.binary_search_by(|t| t.name.as_str().cmp(name)).ok()?;
        Some((&self.infos[at], &self.places[at]))
    }
}

impl Source for Tensors {
    fn file(&self) -> &str {
        &self.file
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let Some((info, place)) = self.place(name) else {
            return Err(Error::tensor(name, format!("is not in {}", self.file)));
        };
        let range = self.shards[place.shard].range(place.start, place.end)?;
        Ok(match &place.view {
            None => range,
            Some(view) => Cow::Owned(view.gather(info, &range)?),
        })
    }

    fn release(&self, name: &str) {
        if let Some((_, place)) = self.place(name) {
            self.shards[place.shard].release(place.start, place.end);
        }
    }

    fn release_bytes(&self, bytes: &[u8]) {
        self.shards.iter().for_each(|shard| shard.release_bytes(bytes));
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn total_bytes(&self) -> u64 {
        let bytes = |t: &TensorInfo| t.stored.bytes(t.elements()).unwrap_or(0) as u64;
        self.infos.iter().map(bytes).fold(0, u64::saturating_add)
    }
}
