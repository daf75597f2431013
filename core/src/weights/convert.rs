//! Writes a model in the own pre-sharded format ([`crate::checkpoint::ready`]): sharded for a degree,
//! quantized or as it is.
//!
//! Operands are read, sharded for every rank and written one after the other, so memory holds one at a time.
//! A converted model can be converted again: sharded for another degree, or merged to one rank.

use super::{HostMatrix, LoadOptions, Own, operand, pieces, shares_of, stored_shares};
use crate::checkpoint::ready::{DIGEST, Digest, MANIFEST, Manifest, Shape, rank_file, stored_as};
use crate::checkpoint::{Layout, ModelFiles};
use crate::config::ModelConfig;
use crate::mem::{Stored, WeightFormat};
use crate::policy::{Catalog, ModelSpec, Rank, Resolved};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What to write.
#[derive(Debug, Clone, Copy)]
pub struct ConvertOptions {
    /// Ranks: 1, 2, 4 or 8.
    pub world: usize,
    /// Format for matmuls whose binding allows it; none keeps what is stored.
    pub quantize: Option<WeightFormat>,
    /// As [`LoadOptions::quantize_embeddings`].
    pub quantize_embeddings: bool,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Converted {
    /// Operands of each rank.
    pub operands: usize,
    /// Bytes of all ranks' files.
    pub bytes: u64,
}

/// Writes operands and manifest to `out`, which must exist; configuration and tokenizer are the caller's to
/// copy ([`crate::checkpoint::copy_companions`]). `progress` is called with bytes read so far and in all.
///
/// # Errors
/// `Config` for a degree that is not 1, 2, 4 or 8; `Tensor` where a shard boundary lies inside a block or
/// group; what reading and writing raise.
pub fn convert(
    files: &ModelFiles,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    out: &Path,
    options: ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    let ConvertOptions { world, quantize, quantize_embeddings } = options;
    let group = Rank::new(0, world)?;
    let source = files.source.as_ref();
    let load = LoadOptions { quantize, quantize_embeddings, world, ..LoadOptions::default() };
    let shares = shares_of(source, spec, resolved, load)?;
    let as_stored = stored_shares(source, spec, resolved, load)?;
    let stored = |one: &Resolved<'_>| match one.binding.role.is_vector() {
        // Whole, whatever norms of heads or the formats of its matrix divide it into.
        true => Ok(vec![pieces::whole(source, spec, one, load)?]),
        false => pieces::pieces(source, spec, resolved, one, load),
    };
    let all = resolved.iter().map(|one| Ok((one, stored(one)?))).collect::<Result<Vec<_>>>()?;
    let count = all.iter().map(|(_, pieces)| pieces.len()).sum();
    let mut ranks = Vec::with_capacity(world);
    for rank in 0..world {
        ranks.push(RankFile::create(out.join(rank_file(rank, world)), count)?);
    }
    let (mut done, total) = (0, source.total_bytes());
    for (one, pieces) in all {
        let (role, mut counted) = (one.binding.role, 0);
        let heads = operand::of_heads(source, one, pieces.first())?;
        for piece in pieces {
            let whole =
                operand::read(source, (spec, as_stored.as_ref()), (one, heads.as_ref()), &piece, load)?;
            for (file, rank) in ranks.iter_mut().zip(group.all()) {
                let rows = match Own::of(spec, &shares, &role, &piece.outputs, rank)? {
                    Some(own) => whole.of_rank((spec, &shares), one, &piece, &own, rank)?,
                    None => HostMatrix {
                        name: piece.name.clone(),
                        rows: 0,
                        cols: 0,
                        format: piece.format,
                        parts: Vec::new(),
                    },
                };
                let shape = Shape { rows: rows.rows, cols: rows.cols, format: rows.format };
                file.put(piece.name.clone(), shape, &rows.parts)?;
            }
            done += whole.bytes_read(one, counted..piece.sources.end);
            counted = piece.sources.end;
        }
        one.tensors.iter().for_each(|t| source.release(&t.name));
        source.release_ready(&role.to_string());
        progress(done.min(total), total);
    }
    let bytes = finished(ranks, files, out)?;
    Ok(Converted { operands: count, bytes })
}

/// Ends the ranks' files and writes their manifest; bytes of all files.
fn finished(ranks: Vec<RankFile>, files: &ModelFiles, out: &Path) -> Result<u64> {
    let world = ranks.len();
    let (mut operands, mut digests) = (Vec::with_capacity(world), Vec::with_capacity(world));
    let mut bytes = 0;
    for rank in ranks {
        let (shapes, digest, size) = rank.finish()?;
        bytes += size;
        operands.push(shapes);
        digests.push(digest);
    }
    let gguf = files.layout == Layout::Gguf;
    let tensors = files.source.tensors().to_vec();
    let manifest = Manifest { world, tensors, operands, digests, gguf, by_leaves: true };
    let path = out.join(MANIFEST);
    std::fs::write(&path, manifest.to_json().to_string()).map_err(|e| Error::io(&path, e))?;
    Ok(bytes)
}

/// As [`convert`], for a model whose policy is to be chosen from `registry`.
///
/// # Errors
/// As [`convert`]; those of choosing and resolving a policy.
pub fn convert_model(
    files: &ModelFiles,
    registry: &crate::policy::Registry,
    out: &Path,
    options: ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted> {
    let config = ModelConfig::new(files.config.clone())?;
    let catalog = Catalog::new(files.source.tensors());
    let policy = registry.choose(&config, catalog)?;
    let spec = policy.spec(&config, catalog)?;
    let resolved = crate::policy::resolve(policy.as_ref(), &spec, &config, catalog)?;
    convert(files, &spec, &resolved, out, options, progress)
}

/// A safetensors file in the making: room for its header in front, operands behind it as they come.
struct RankFile {
    path: PathBuf,
    to: BufWriter<File>,
    room: usize,
    at: u64,
    header: serde_json::Map<String, serde_json::Value>,
    shapes: BTreeMap<String, Shape>,
    /// Of all operands so far.
    digest: Digest,
}

/// Bytes of a header's entry at most: a role's name, a type, two numbers, two offsets.
const ENTRY: usize = 256;

impl RankFile {
    fn create(path: PathBuf, operands: usize) -> Result<Self> {
        // One more for the digest.
        let room = ((operands + 1) * ENTRY + 64).next_multiple_of(64) - 8;
        let file = File::create(&path).map_err(|e| Error::io(&path, e))?;
        let mut to = BufWriter::new(file);
        to.seek(SeekFrom::Start(room as u64 + 8)).map_err(|e| Error::io(&path, e))?;
        Ok(Self {
            path,
            to,
            room,
            at: 0,
            header: serde_json::Map::new(),
            shapes: BTreeMap::new(),
            digest: Digest::default(),
        })
    }

    fn put(&mut self, role: String, shape: Shape, parts: &[std::borrow::Cow<'_, [u8]>]) -> Result<()> {
        let (stored, dims) = stored_as(shape);
        let start = self.at;
        for part in parts {
            self.digest.add(part);
            self.to.write_all(part).map_err(|e| Error::io(&self.path, e))?;
            self.at += part.len() as u64;
        }
        if self.at - start != shape.format.bytes(shape.rows, shape.cols) as u64 {
            return Err(Error::internal(format!("{role} has {} bytes for {shape:?}", self.at - start)));
        }
        let dtype = match stored {
            Stored::F32 => "F32",
            Stored::F16 => "F16",
            Stored::Bf16 => "BF16",
            _ => "U8",
        };
        let entry = serde_json::json!({"dtype": dtype, "shape": dims, "data_offsets": [start, self.at]});
        self.header.insert(role.clone(), entry);
        self.shapes.insert(role, shape);
        Ok(())
    }

    /// Writes the header and, as its last entry, the digest of the operands, by which the manifest knows the
    /// file.
    fn finish(mut self) -> Result<(BTreeMap<String, Shape>, Digest, u64)> {
        let digest = self.digest;
        self.to.write_all(&digest.bytes()).map_err(|e| Error::io(&self.path, e))?;
        let (start, end) = (self.at, self.at + digest.bytes().len() as u64);
        let entry =
            serde_json::json!({"dtype": "U8", "shape": [digest.bytes().len()], "data_offsets": [start, end]});
        self.header.insert(DIGEST.into(), entry);
        self.at = end;
        let mut header = serde_json::Value::Object(std::mem::take(&mut self.header)).to_string();
        if header.len() > self.room {
            return Err(Error::internal(format!(
                "a header of {} bytes in room for {}",
                header.len(),
                self.room
            )));
        }
        // Spaces behind JSON are part of the format.
        header.extend(std::iter::repeat_n(' ', self.room - header.len()));
        let path = self.path;
        let write = |to: &mut BufWriter<File>| -> std::io::Result<()> {
            to.seek(SeekFrom::Start(0))?;
            to.write_all(&(header.len() as u64).to_le_bytes())?;
            to.write_all(header.as_bytes())?;
            to.flush()
        };
        write(&mut self.to).map_err(|e| Error::io(&path, e))?;
        Ok((self.shapes, digest, self.at + header.len() as u64 + 8))
    }
}
