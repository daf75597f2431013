//! An autoencoder of pictures with its weights on a backend, at any size of pictures, whole or in tiles.

use crate::graph::{Graph, Grid, Tensors};
use crate::load::Loaded;
use crate::model::{Known, check_class};
use crate::nets::VaeSpec;
use crate::run::{Executable, Graphs, Plan, StepCounts};
use crate::tiles::{Place, Tile, Tiles};
use engraft_core::backend::Backend;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// An autoencoder of pictures.
pub struct Vae<B: Backend> {
    spec: VaeSpec,
    tensors: Tensors,
    loaded: Loaded<B>,
    dtype: Float,
    encoder: Option<At<B>>,
    decoder: Option<At<B>>,
    /// Of encoding and of decoding.
    tiles: Option<(Tiles, Tiles)>,
    slicing: bool,
    graphs: Graphs,
    plan: Plan,
}

/// A graph at the size that it was made for.
type At<B> = ((usize, Grid), Executable<B>);

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Encode,
    Decode,
}

impl Way {
    /// The graph's input, and its columns.
    fn input(self, spec: &VaeSpec) -> (&'static str, usize) {
        match self {
            Way::Encode => ("image", spec.in_channels),
            Way::Decode => ("latents", spec.latent_channels),
        }
    }

    fn graph(self, spec: &VaeSpec, tensors: &mut Tensors, items: usize, size: Grid) -> Result<Graph> {
        match self {
            Way::Encode => spec.encoder(tensors, items, size),
            Way::Decode => spec.decoder(tensors, items, size),
        }
    }

    /// The size of what comes out.
    fn size_of(self, spec: &VaeSpec, size: Grid) -> Grid {
        match self {
            Way::Encode => spec.latents_of(size),
            Way::Decode => spec.pixels_of(size),
        }
    }
}

impl<B: Backend> Vae<B> {
    /// Loads a folder of class `AutoencoderKL`, `AutoencoderTiny` or `AutoencoderDC`.
    ///
    /// # Errors
    /// As [`Unet::load`](crate::Unet::load).
    pub fn load(backend: Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Self> {
        let Known { spec, tensors, uses, plan } = Self::check(&backend, files, dtype)?;
        let graphs = Graphs::of(backend.as_ref());
        let loaded = Loaded::new(backend, files.source.as_ref(), &tensors, &uses)?;
        let (encoder, decoder, tiles, slicing) = (None, None, None, false);
        Ok(Self { spec, tensors, loaded, dtype, encoder, decoder, tiles, slicing, graphs, plan })
    }

    /// What a folder has, and whether the backend can run it, before a weight is read.
    ///
    /// # Errors
    /// As [`Vae::load`].
    pub(crate) fn check(backend: &Arc<B>, files: &ModelFiles, dtype: Float) -> Result<Known<VaeSpec>> {
        let class = check_class(files, &["AutoencoderKL", "AutoencoderTiny", "AutoencoderDC"])?;
        let spec = match class {
            "AutoencoderTiny" => VaeSpec::of_tiny(&files.config)?,
            "AutoencoderDC" => VaeSpec::of_deep(&files.config)?,
            _ => VaeSpec::new(&files.config)?,
        };
        let graphs = |spec: &VaeSpec, tensors: &mut Tensors| {
            let side = 2 * spec.factor();
            let encoder = spec.encoder(tensors, 1, Grid { height: side, width: side })?;
            Ok(vec![encoder, spec.decoder(tensors, 1, Grid { height: 1, width: 1 })?])
        };
        Known::new((backend, dtype), files, (class, &[]), spec, graphs)
    }

    /// Its description.
    pub fn spec(&self) -> &VaeSpec {
        &self.spec
    }

    /// How it runs on its backend: encoding, then decoding.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether encoding and decoding are captured and replayed for other pictures of the same size (and
    /// tiles, and pictures of a batch), where the backend can; they are unless this says otherwise. No bit
    /// depends on it.
    pub fn set_graphs(&mut self, on: bool) {
        self.graphs.set(self.loaded.backend().as_ref(), on);
    }

    /// What became of its runs so far, encoding and decoding together.
    pub fn run_counts(&self) -> &StepCounts {
        &self.graphs.counts
    }

    /// Computes large pictures in tiles that overlap, so that activations take memory for one tile. The
    /// result differs from that of the whole, as the reference's does: norms and attention see a tile alone.
    ///
    /// Tiles have the side that the model was trained with (`sample_size`), of classes `AutoencoderTiny` and
    /// `AutoencoderDC` 512 pixels, and overlap by a quarter, of those by an eighth. Of `AutoencoderTiny` all
    /// pictures are, others where a side is larger than a tile's.
    ///
    /// # Errors
    /// `Config` for a `sample_size` whose quarter is no whole number of latents.
    pub fn enable_tiling(&mut self) -> Result<()> {
        self.tiles = Some(self.spec.tiles()?);
        Ok(())
    }

    /// Computes the pictures of a batch one after the other: activations take memory for one, and every bit
    /// is the same.
    pub fn enable_slicing(&mut self) {
        self.slicing = true;
    }

    /// Bytes of weights on the device, and of activations at the sizes that ran last.
    pub fn bytes(&self) -> (usize, usize) {
        let of = |at: &Option<At<B>>| at.as_ref().map_or(0, |(_, run)| run.bytes());
        (self.loaded.bytes(), of(&self.encoder) + of(&self.decoder))
    }

    /// Mean and logarithm of the variance, as it is stored (the reference holds it within -30 and 20): of
    /// `[items * height * width, channels]`, -1 to 1, the rows `[items * latents, mean | logarithm]`; of
    /// classes `AutoencoderTiny` and `AutoencoderDC`, which have no variance, the latents.
    ///
    /// # Errors
    /// `Config` for another number of values and a picture that is too small; what the backend raises.
    pub async fn encode(&mut self, image: &[f32], items: usize, size: Grid) -> Result<Vec<f32>> {
        let image: Cow<'_, [f32]> = self.spec.encoder_input(image);
        self.run(Way::Encode, &image, items, size).await
    }

    /// Pictures of latents `[items * height * width, channels]`: `[items * pixels, channels]`.
    ///
    /// # Errors
    /// As [`Vae::encode`].
    pub async fn decode(&mut self, latents: &[f32], items: usize, size: Grid) -> Result<Vec<f32>> {
        let latents: Cow<'_, [f32]> = self.spec.decoder_input(latents);
        let decoded = self.run(Way::Decode, &latents, items, size).await?;
        Ok(self.spec.picture_of(decoded))
    }

    /// Of all items at once, or of one after the other.
    async fn run(&mut self, way: Way, values: &[f32], items: usize, size: Grid) -> Result<Vec<f32>> {
        let tiles = self.tiles.map(|(encode, decode)| if way == Way::Encode { encode } else { decode });
        let tiles = tiles.filter(|tiles| tiles.are_needed(size));
        let (name, columns) = way.input(&self.spec);
        let each = size.pixels().saturating_mul(columns);
        if values.len() != items.saturating_mul(each) {
            let want = format!("{} x {columns}", items.saturating_mul(size.pixels()));
            return Err(Error::config(name, format!("{} values", values.len()), want));
        }
        if items == 1 || !(self.slicing || tiles.is_some()) {
            return match tiles {
                Some(tiles) => self.tiled(way, tiles, values, size).await,
                None => self.whole(way, values, items, size).await,
            };
        }
        let mut all = Vec::new();
        for own in values.chunks(each.max(1)) {
            all.extend(match tiles {
                Some(tiles) => self.tiled(way, tiles, own, size).await?,
                None => self.whole(way, own, 1, size).await?,
            });
        }
        Ok(all)
    }

    /// By a graph of this size, which is made anew where the one that is kept has another.
    async fn whole(&mut self, way: Way, values: &[f32], items: usize, size: Grid) -> Result<Vec<f32>> {
        let Self { spec, tensors, loaded, dtype, encoder, decoder, graphs, .. } = self;
        let kept = if way == Way::Encode { encoder } else { decoder };
        let at = (items, size);
        if kept.as_ref().is_none_or(|(known, _)| *known != at) {
            // Its memory goes before that of the next one comes.
            *kept = None;
            let graph = way.graph(spec, tensors, items, size)?;
            *kept = Some((at, Executable::new(loaded, graph, *dtype)?));
        }
        let Some((_, run)) = kept else { return Err(Error::internal("no graph")) };
        run.give(way.input(spec).0, values)?;
        run.step_by(loaded, graphs)?;
        run.read(0).await
    }

    /// One item in tiles. Those of a size come one after the other: there are four sizes at most, so that as
    /// many graphs are made.
    async fn tiled(&mut self, way: Way, tiles: Tiles, values: &[f32], size: Grid) -> Result<Vec<f32>> {
        let places = tiles.places(size);
        let mut sizes: Vec<Grid> = Vec::new();
        for place in &places {
            if !sizes.contains(&place.grid()) {
                sizes.push(place.grid());
            }
        }
        let mut made: Vec<Option<Tile>> = vec![None; places.len()];
        for own in sizes {
            let of_size = |(place, _): &(&Place, &mut Option<Tile>)| place.grid() == own;
            for (place, tile) in places.iter().zip(&mut made).filter(of_size) {
                let values = self.whole(way, &place.of(values, size), 1, own).await?;
                *tile = Some(Tile { grid: way.size_of(&self.spec, own), values });
            }
        }
        let made = made.into_iter().flatten().collect();
        Ok(tiles.join(size, way.size_of(&self.spec, size), made))
    }
}
