//! What a driver reports outside any call.

use engraft_core::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The first fault of a device: what the driver reported outside any call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    first: Arc<Mutex<Option<Fault>>>,
    device: Option<wgpu::Device>,
}

/// How long a device that refuses something may take to say that it is lost.
const SAYS_SO: Duration = Duration::from_secs(10);

/// What went wrong.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    Lost(String),
    OutOfMemory,
    Other(String),
}

impl Faults {
    /// Listens to a device.
    pub fn of(device: &wgpu::Device) -> Self {
        let faults = Self { device: Some(device.clone()), ..Self::default() };
        // Without the device, which keeps what listens.
        let listener = || Self { first: faults.first.clone(), device: None };
        let sink = listener();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            sink.set(match e {
                wgpu::Error::OutOfMemory { .. } => Fault::OutOfMemory,
                other => Fault::Other(other.to_string()),
            });
        }));
        let sink = listener();
        device.set_device_lost_callback(move |reason, what| {
            sink.set(Fault::Lost(format!("{what} ({reason:?})")))
        });
        faults
    }

    /// Keeps the first fault; the loss of the device stands above any other.
    pub fn set(&self, fault: Fault) {
        let mut kept = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none() || matches!(fault, Fault::Lost(_)) {
            *kept = Some(fault);
        }
    }

    /// The fault that was reported since the last check; a lost device stays lost.
    pub fn check(&self) -> Result<()> {
        let error = match self.reported() {
            Err(error @ Error::Internal { .. }) => error,
            other => return other,
        };
        // A device that is lost refuses what it is asked before it says so: it does once nothing of its work
        // is left.
        if let Some(device) = &self.device {
            let wait =
                || device.poll(wgpu::PollType::Wait { submission_index: None, timeout: Some(SAYS_SO) });
            // A wait may panic when the device is lost meanwhile.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
        }
        self.reported().and(Err(error))
    }

    fn reported(&self) -> Result<()> {
        let mut fault = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        match fault.as_ref() {
            None => Ok(()),
            Some(Fault::Lost(what)) => Err(Error::DeviceLost { what: what.clone() }),
            Some(_) => match fault.take() {
                Some(Fault::OutOfMemory) => {
                    Err(Error::OutOfMemory { what: "the device's own needs".into(), wanted: 0, free: 0 })
                }
                Some(Fault::Other(what)) => Err(Error::internal(format!("wgpu: {what}"))),
                _ => Ok(()),
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_is_kept_and_loss_stays() {
        let faults = Faults::default();
        assert!(faults.check().is_ok());
        faults.set(Fault::Other("first".into()));
        faults.set(Fault::Other("second".into()));
        assert!(faults.check().unwrap_err().to_string().contains("first"));
        assert!(faults.check().is_ok());
        faults.set(Fault::Lost("gone".into()));
        for _ in 0..2 {
            assert!(matches!(faults.check(), Err(Error::DeviceLost { .. })));
        }
        let faults = Faults::default();
        faults.set(Fault::OutOfMemory);
        faults.set(Fault::Lost("gone".into()));
        assert!(matches!(faults.check(), Err(Error::DeviceLost { .. })));
    }
}
