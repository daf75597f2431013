//! A device without memory: what is enqueued on it is looked at and not run, before a weight is read.

use super::{Device, DeviceMem, KvLayout, Weight, WeightInfo};

/// The device.
#[derive(Debug)]
pub struct DryDevice;

/// Memory that is a size alone, in bytes.
#[derive(Debug)]
pub struct DryMem(pub usize);

/// A weight that is what is known of it.
#[derive(Debug)]
pub struct DryWeight(pub WeightInfo);

impl DeviceMem for DryMem {
    fn bytes(&self) -> usize {
        self.0
    }
}

impl Weight for DryWeight {
    fn info(&self) -> &WeightInfo {
        &self.0
    }
}

impl Device for DryDevice {
    type Mem = DryMem;
    type Weight = DryWeight;
    type AttnPlan = ();

    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        let [keys, values] = layout.row_bytes();
        (layout.slots() * keys, layout.slots() * values)
    }
}
