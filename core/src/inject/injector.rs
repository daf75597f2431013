//! Reading a model, with blocks of one's own in it.

use super::build::{build, build_ropes};
use super::{check, describe};
use crate::backend::Backend;
use crate::checkpoint::ModelFiles;
use crate::model::{Model, Own, OwnBlock};
use crate::ops::Signature;
use crate::policy::{Catalog, ModelSpec, Origin, Rank, Registry, resolve};
use crate::weights::{Fingerprinted, LoadOptions, compute, load, shares_of};
use crate::{Error, Result};
use std::sync::Arc;

/// Looks at a layer of a model and gives the block that takes its place, or none; prepares its weights with
/// the backend.
pub type MakeBlock<B> = dyn Fn(&Arc<B>, &ModelSpec, usize) -> Result<Option<Box<dyn OwnBlock<<B as Backend>::Device>>>>
    + Send
    + Sync;

/// Reads checkpoints into models of a backend.
pub struct Injector<'a, B: Backend> {
    registry: &'a Registry,
    positions: usize,
    options: LoadOptions,
    makers: Vec<(String, Box<MakeBlock<B>>)>,
}

impl<'a, B: Backend> Injector<'a, B> {
    /// An injector without blocks of one's own; `positions`: how far computed tables reach,
    /// those of rotations, of sines and of factors.
    pub fn new(registry: &'a Registry, positions: usize, options: LoadOptions) -> Self {
        Self { registry, positions, options, makers: Vec::new() }
    }

    /// Offers blocks of one's own: `make` is asked about every layer of a model, after its weights are read.
    pub fn register<F>(&mut self, name: &str, make: F) -> &mut Self
    where
        F: Fn(&Arc<B>, &ModelSpec, usize) -> Result<Option<Box<dyn OwnBlock<B::Device>>>>
            + Send
            + Sync
            + 'static,
    {
        self.makers.push((name.to_string(), Box::new(make)));
        self
    }

    /// Reads a whole model: chooses the policy, resolves names, asks whether the backend can run it, loads
    /// operands, builds blocks, then puts own ones in their places. `progress` is called with bytes read so
    /// far and in all.
    ///
    /// # Errors
    /// What these steps raise; `Unsupported` before a weight is read where the backend lacks an op or cannot
    /// read a format; `Config` where two own blocks want the same layer, or one wants none.
    pub fn inject(
        &self,
        backend: &Arc<B>,
        files: &ModelFiles,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model<B::Device>> {
        let (spec, policy, config) = describe(files, self.registry)?;
        // Once for a group of ranks.
        for assumed in spec.assumed.iter().filter(|_| self.options.rank == 0) {
            tracing::warn!("{} policy: {assumed}", policy.name());
        }
        let catalog = Catalog::new(files.source.tensors());
        let resolved = resolve(policy.as_ref(), &spec, &config, catalog)?;
        tracing::debug!(policy = policy.name(), arch = spec.arch, "{}", policy.why(&config));
        let (source, coverage) = (files.source.as_ref(), |s: &Signature| backend.coverage(s));
        let uses = check(backend.name(), &coverage, source, &spec, &resolved, self.options)?;
        let read = Fingerprinted::new(source);
        let mut operands = load(backend.as_ref(), &read, &spec, &resolved, self.options, &uses, progress)?;
        compute(backend.as_ref(), &spec, self.positions, &uses, &mut operands)?;
        let ropes = build_ropes(backend, &spec, operands.rope_factors.as_deref(), self.positions)?;
        let rank = Rank::new(self.options.rank, self.options.world)?;
        let shares = shares_of(source, &spec, &resolved, self.options)?;
        let mut model = build(shares.spec(&spec, rank), operands, ropes)?;
        model.origin = Some(Origin::new(policy.as_ref(), &config, &resolved));
        let (format, all) = (self.options.quantize, self.options.quantize_embeddings);
        let quantized = format.map_or(String::new(), |f| format!("{f:?}{}", if all { " all" } else { "" }));
        let quantized = crc32fast::hash(quantized.as_bytes());
        model.fingerprint = Some(read.fingerprint() ^ quantized).filter(|_| self.makers.is_empty());
        self.graft(backend, &mut model)?;
        Ok(model)
    }

    /// Puts own blocks in their places.
    fn graft(&self, backend: &Arc<B>, model: &mut Model<B::Device>) -> Result<()> {
        for (name, make) in &self.makers {
            let mut taken = false;
            for layer in 0..model.blocks.len() {
                let Some(block) = make(backend, &model.spec, layer)? else { continue };
                taken = true;
                model.graft(layer, Own { name: name.clone(), block })?;
            }
            if !taken {
                return Err(Error::config(
                    format!("own block {name}"),
                    "for no layer",
                    format!("at least one of the {} layers of {}", model.blocks.len(), model.spec.arch),
                ));
            }
        }
        Ok(())
    }
}
