//! Where an instruction comes from.

use std::sync::Arc;

use super::Lowering;
use crate::text::syntax::Loc;

impl Lowering<'_> {
    /// What a `.loc` says, with the name of its file alone: paths of the machine that compiled it help
    /// nobody.
    pub(super) fn source_of(&mut self, loc: Loc) -> Option<Arc<str>> {
        if let Some(known) = self.sources.get(&loc) {
            return known.clone();
        }
        let file = self.file;
        let show = |(number, line): (u32, u32)| {
            let name = &file.sources.iter().find(|s| s.0 == number)?.1;
            Some(format!("{}:{line}", name.rsplit(['/', '\\']).next().unwrap_or(name)))
        };
        let shown = show(loc.at).map(|at| match loc.inlined.and_then(show) {
            Some(call) => format!("{at}, inlined at {call}").into(),
            None => at.into(),
        });
        self.sources.insert(loc, shown.clone());
        shown
    }
}
