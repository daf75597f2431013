//! A model that Engraft does not know: teach it with a policy of your own.
//!
//! `cargo run --release -p engraft --example 03_own_policy`
//!
//! Here the demo model's tensors are renamed as another code base might have called them. Without help no
//! policy fits. The policy below describes the architecture (LLaMA's, under other names); it never touches a
//! tensor.

use engraft::engraft_core::checkpoint::{ModelFiles, Source, TensorInfo};
use engraft::engraft_core::config::ModelConfig;
use engraft::engraft_core::policy::{Binding, Catalog, Fit, InjectionPolicy, LLAMA, ModelSpec};
use engraft::{GenerateOptions, Options, Registry, Result, demo_files};
use std::borrow::Cow;
use std::sync::Arc;

/// LLaMA's blocks under the names of an imaginary code base.
struct Acme;

/// `model.layers.0.self_attn.q_proj.weight` is called `acme/layers/0/self_attn/q_proj/weight` there.
fn acme_name(name: &str) -> String {
    name.replacen("model.", "acme/", 1).replace('.', "/")
}

impl InjectionPolicy for Acme {
    fn name(&self) -> &str {
        "acme"
    }

    fn fit(&self, config: &ModelConfig, _: Catalog<'_>) -> Fit {
        match config.model_type() {
            "acme" => Fit::Yes { specificity: 10 },
            other => Fit::No(format!("model_type is \"{other}\"")),
        }
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let mut spec = LLAMA.spec(config, catalog)?;
        spec.arch = "acme".into();
        Ok(spec)
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        // The same roles, fusions and shards; other names.
        let mut bindings = LLAMA.bindings(spec, config, catalog);
        for source in bindings.iter_mut().flat_map(|b| &mut b.sources) {
            source.names = vec![acme_name(&source.names[0])];
        }
        bindings
    }
}

fn main() -> Result<()> {
    match Options::new().open(acme_model()?) {
        Ok(_) => println!("some built-in policy fits, which was not expected"),
        Err(error) => println!("without the policy:\n  {error}\n"),
    }

    let mut registry = Registry::default();
    registry.register(Arc::new(Acme));
    let model = Options::new().registry(registry).open(acme_model()?)?;
    println!("with it:\n  {}", model.info().plan.to_string().lines().next().unwrap_or_default());
    let prompt = "This package provides";
    let text = model.generate(prompt, &GenerateOptions::new().max_new_tokens(32).greedy())?.text()?;
    println!("  {prompt}{}", text.trim_end());
    Ok(())
}

/// The demo model as that code base would have published it.
fn acme_model() -> Result<ModelFiles> {
    let mut files = demo_files()?;
    files.config["model_type"] = "acme".into();
    files.source = Box::new(Renamed::new(files.source));
    Ok(files)
}

/// A checkpoint whose tensors have other names: any storage can stand behind `Source`.
struct Renamed {
    inner: Box<dyn Source>,
    tensors: Vec<TensorInfo>,
    /// Old names, in the order of `tensors`.
    names: Vec<String>,
}

impl Renamed {
    fn new(inner: Box<dyn Source>) -> Self {
        let mut both: Vec<(TensorInfo, String)> = inner
            .tensors()
            .iter()
            .map(|t| (TensorInfo { name: acme_name(&t.name), ..t.clone() }, t.name.clone()))
            .collect();
        both.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        let (tensors, names) = both.into_iter().unzip();
        Self { inner, tensors, names }
    }

    fn old<'a>(&'a self, name: &'a str) -> &'a str {
        let at = self.tensors.iter().position(|t| t.name == name);
        at.map_or(name, |i| &self.names[i])
    }
}

impl Source for Renamed {
    fn file(&self) -> &str {
        self.inner.file()
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        self.inner.bytes(self.old(name))
    }
    fn release(&self, name: &str) {
        self.inner.release(self.old(name));
    }
    fn total_bytes(&self) -> u64 {
        self.inner.total_bytes()
    }
}
