//! Exchanges of ranks on devices, on the software driver: by own kernels over memory that all reach, and by a
//! double of NCCL (`tests/soft-nccl`): the law of ranks, what becomes of the others where one fails, and that
//! the double names misuse.
//!
//! Ranks are threads, each with a device of its own. Settings of the driver and of the double are those of
//! the process, so tests run one at a time.
#![allow(clippy::unwrap_used, clippy::panic)]

mod both;
mod double;
mod failures;
mod law;
mod peers;
mod traffic;

use conformance::backends::cuda_with;
use engraft_core::Result;
use engraft_core::backend::{Backend, Board, Communicator, Exchange, Stream, block_on};
use engraft_core::mem::{Float, Mat};
use engraft_core::numerics::Mode;
use engraft_cuda::{Cuda, CudaConfig, CudaMem, CudaStream};
use engraft_ranks::ThreadBoard;
use soft_cuda::preload;
use soft_nccl::{Control, Order};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// The double, for one test at a time.
struct Double(&'static Control, #[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

/// The double as it is at first: loaded by its path.
fn double() -> Double {
    static CONTROL: OnceLock<Control> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());
    let held = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let control = CONTROL.get_or_init(|| {
        // Before a test opens one.
        preload::load().unwrap().set_devices(8, 1 << 30).unwrap();
        Control::load().unwrap()
    });
    control.order(Order::Ring);
    control.patience(Duration::from_secs(60));
    control.version(22_809);
    Double(control, held)
}

/// A device whose ranks exchange by the double.
fn device(double: &Double, mode: Mode) -> Arc<Cuda> {
    let config = CudaConfig { mode, nccl: Some(double.0.path.clone()), ..CudaConfig::default() };
    cuda_with("cuda:soft", config).unwrap()
}

/// A device whose ranks exchange by kernels.
fn reached(_alone: &Double, mode: Mode) -> Arc<Cuda> {
    let config = CudaConfig { mode, exchange: Exchange::Peers, ..CudaConfig::default() };
    cuda_with("cuda:soft", config).unwrap()
}

/// A rank of a group that a test makes by hand.
struct OneRank {
    rank: usize,
    gpu: Arc<Cuda>,
    comm: Box<dyn Communicator<Cuda>>,
    stream: CudaStream,
}

impl OneRank {
    fn new(gpu: &Arc<Cuda>, board: ThreadBoard) -> Result<Self> {
        let (rank, world) = (board.rank(), board.world());
        let gpu = gpu.of_rank(rank, world)?;
        let comm = gpu.group(Box::new(board))?;
        let stream = gpu.stream()?;
        Ok(Self { rank, gpu, comm, stream })
    }

    fn matrix(&mut self, cols: usize, values: &[f32]) -> Result<Mat<CudaMem>> {
        let rows = values.len() / cols;
        let mut x = Mat::new(self.gpu.alloc(4 * values.len())?, rows, cols, Float::F32)?;
        self.stream.upload(values, x.view_mut(rows)?.into_f32()?)?;
        Ok(x)
    }

    fn read(&mut self, x: &Mat<CudaMem>) -> Result<Vec<f32>> {
        let mut values = vec![0.0; x.rows() * x.cols()];
        let ticket = self.stream.download(x.view(x.rows())?.as_f32()?)?;
        block_on(self.stream.collect(ticket, &mut values))?;
        Ok(values)
    }

    /// What an exchange of sums makes of `values`.
    fn sum(&mut self, cols: usize, values: &[f32], adds: bool) -> Result<Vec<f32>> {
        self.sum_behind(0, cols, values, adds)
    }

    /// The same of values that stand behind so many other rows.
    fn sum_behind(&mut self, before: usize, cols: usize, values: &[f32], adds: bool) -> Result<Vec<f32>> {
        let mut all = vec![0.25; before * cols];
        all.extend(values);
        let mut x = self.matrix(cols, &all)?;
        let rows = x.rows();
        self.comm.all_reduce(&mut self.stream, x.view_mut(rows)?.row_range(before..rows)?, adds)?;
        let sums = self.read(&x)?;
        let (others, sums) = sums.split_at(before * cols);
        assert!(others.iter().all(|value| *value == 0.25), "{others:?}");
        Ok(sums.to_vec())
    }
}

/// Runs `body` as every rank, on a thread each, with so much patience.
fn ranks<T: Send>(
    gpu: &Arc<Cuda>,
    world: usize,
    patience: Duration,
    body: impl Fn(Result<OneRank>) -> T + Sync,
) -> Vec<T> {
    let (boards, body) = (ThreadBoard::group_with_patience(world, patience).unwrap(), &body);
    thread::scope(|scope| {
        let all: Vec<_> =
            boards.into_iter().map(|board| scope.spawn(move || body(OneRank::new(gpu, board)))).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
