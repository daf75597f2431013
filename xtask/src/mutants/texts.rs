//! What mutants are sampled from.

use super::args::{Args, Language};
use super::{Mutant, Operator, Outcome, Site, ptx, suite, wgsl};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A text that mutants are sampled from.
#[derive(Debug)]
pub struct Text {
    /// `norm.compute_90a` or `norm.wgsl`.
    pub name: String,
    /// What its tests are called.
    pub stem: String,
    /// As it is.
    pub text: String,
    /// Its places.
    pub sites: Vec<Site>,
}

impl Text {
    /// The name of the mutant at a place.
    pub fn key(&self, site: &Site) -> String {
        format!("{} {}:{} {:?}", self.name, site.unit, site.line + 1, site.operator)
    }
}

/// The texts of a language; none of Rust, whose mutants stand in a build.
///
/// # Errors
/// Files that cannot be read.
pub fn texts(language: Language) -> Outcome<Vec<Text>> {
    let text = |name: String, stem: &str, text: String, sites| Text { name, stem: stem.into(), text, sites };
    match language {
        Language::Rust => Ok(Vec::new()),
        Language::Ptx => engraft_kernels::MODULES
            .iter()
            .map(|module| {
                let ptx = module.ptx().map_err(|e| e.to_string())?;
                let name = format!("{}.{}", module.stem, module.arch);
                Ok(text(name, module.stem, ptx.to_owned(), ptx::sites(ptx)))
            })
            .collect(),
        Language::Wgsl => {
            let folder = Path::new(suite::TEMPLATES);
            let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let mut names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            names.sort();
            names
                .into_iter()
                .filter_map(|path| {
                    let name = path.file_name()?.to_str()?.to_owned();
                    let stem = name.strip_suffix(".wgsl")?.split('_').next()?.to_owned();
                    let read = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()));
                    Some(read.map(|wgsl| text(name.clone(), &stem, wgsl.clone(), wgsl::sites(&name, &wgsl))))
                })
                .collect()
        }
    }
}

/// The mutants of these names.
///
/// # Errors
/// A name that no place has.
pub fn named<'a>(texts: &'a [Text], names: &[String]) -> Outcome<Vec<Mutant<'a>>> {
    let of = |text: &'a Text, name: &str| {
        let sites = text.sites.iter().filter(|site| text.key(site) == name);
        sites.map(|site| Mutant::of(text, site)).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for name in names {
        let found: Vec<_> = texts.iter().flat_map(|text| of(text, name)).collect();
        if found.is_empty() {
            return Err(format!(
                "no place has the name `{name}`; allowed: TEXT UNIT:LINE OPERATOR as a run prints it"
            ));
        }
        all.extend(found);
    }
    Ok(all)
}

/// Mutants at random, none twice.
pub fn sample<'a>(texts: &'a [Text], args: &Args) -> Vec<Mutant<'a>> {
    let mut dice = fastrand::Rng::with_seed(args.seed);
    let (mut known, mut sampled) = (BTreeSet::new(), Vec::new());
    let texts: Vec<_> = texts.iter().filter(|text| args.takes(&text.stem)).collect();
    let available: usize = texts.iter().map(|text| text.sites.len()).sum();
    while sampled.len() < args.count.min(available) {
        let Some((t, text)) = dice.choice(texts.iter().enumerate()) else { break };
        let mut units: BTreeMap<&str, BTreeMap<Operator, Vec<usize>>> = BTreeMap::new();
        for (s, site) in text.sites.iter().enumerate() {
            units.entry(&site.unit).or_default().entry(site.operator).or_default().push(s);
        }
        let operators = dice.choice(units.values());
        let places = operators.and_then(|operators| dice.choice(operators.values()));
        let Some(&s) = places.and_then(|places| dice.choice(places)) else { continue };
        if known.insert((t, s)) {
            sampled.push(Mutant::of(text, &text.sites[s]));
        }
    }
    sampled
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_sample_and_no_place_twice() {
        let site = |unit: &str, line, operator| Site {
            unit: unit.into(),
            line,
            operator,
            old: String::new(),
            new: String::new(),
        };
        let rare = site("a", 0, Operator::Wait);
        let often = (1..100).map(|line| site("b", line, Operator::Swap));
        let text = |stem: &str| Text {
            name: stem.into(),
            stem: stem.into(),
            text: String::new(),
            sites: std::iter::once(rare.clone()).chain(often.clone()).collect(),
        };
        let texts = [text("x"), text("y")];
        let args = |seed, stem: &str| {
            crate::mutants::args::read(
                ["ptx", "--seed", seed, "--count", "40", "--stem", stem, "--run", "true"]
                    .map(String::from)
                    .into_iter(),
            )
            .unwrap()
        };
        let keys = |args| sample(&texts, &args).into_iter().map(|mutant| mutant.key).collect::<Vec<_>>();
        let sampled = keys(args("5", "x"));
        assert_eq!(sampled, keys(args("5", "x")));
        assert_ne!(sampled, keys(args("6", "x")));
        assert_eq!(sampled.len(), 40);
        // Of one text, and the one wait among a hundred places is sampled: units come first.
        assert!(sampled.iter().all(|key| key.starts_with("x ")) && sampled.contains(&"x a:1 Wait".into()));
        let mut places = sampled.clone();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 40);
    }
}
