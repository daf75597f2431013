//! What a process does that is another rank than 0.

use super::args::Command;
use super::environment;
use super::failure::{Failure, Outcome};
use super::group::variable;
use std::os::unix::process::parent_id;

/// Carries out the orders of rank 0, where this process is another rank; none where it is not.
/// A command whose ranks are threads refuses flags of processes.
pub fn follow(command: &Command) -> Option<Outcome> {
    if let Some(flag) = command.threads_alone().and_then(|group| group.given()) {
        return Some(Err(Failure::Usage(format!(
            "{flag} does not go with this command: its ranks are threads"
        ))));
    }
    let (model, path) = command.model()?;
    let follow = || {
        let Some((place, _)) =
            environment::place(&model.device.group, model.device.tp, &variable, parent_id())?
        else {
            return Ok(false);
        };
        if place.rank == 0 {
            return Ok(false);
        }
        let (source, options) = model.read(path)?;
        options.follow(source)?;
        Ok(true)
    };
    match follow() {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(failure) => Some(Err(failure)),
    }
}
