//! The same with ractor.

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, rpc::CallResult};

use super::{
    actors::{GOODBYE, Pace, asked, on_worker, runtime},
    kernels::Pair,
};
use crate::{Error, Result, measure::Metric};

struct Adder;

struct Question(Pair, RpcReplyPort<f32>);

impl Actor for Adder {
    type Msg = Question;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Question>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Question>,
        Question(pair, reply): Question,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let _ = reply.send(pair.a + pair.b); // an asker that is gone needs no answer
        Ok(())
    }
}

async fn ask(adder: &ActorRef<Question>, pair: Pair) -> Result<f32> {
    match adder.call(|reply| Question(pair, reply), None).await {
        Ok(CallResult::Success(sum)) => Ok(sum),
        _ => Err(Error::Device("the actor did not answer".to_owned())),
    }
}

pub(super) fn with_ractor(pace: &Pace) -> Result<Vec<Metric>> {
    let (pace, runtime) = (*pace, runtime()?);
    let spawned = runtime.block_on(Adder::spawn(None, Adder, ()));
    let (adder, _) = spawned.map_err(|error| Error::System(error.to_string()))?;
    let mut rows = pace.row("task", || {
        let adder = adder.clone();
        on_worker(&runtime, async move {
            let adder = &adder;
            asked(pace, |pair| ask(adder, pair)).await
        })
    })?;
    rows.extend(pace.row("thread", || pollster::block_on(asked(pace, |pair| ask(&adder, pair))))?);
    adder.stop(None);
    runtime.shutdown_timeout(GOODBYE);
    Ok(rows)
}
