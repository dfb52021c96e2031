//! A plugin that runs: its file was read, and its functions can be called.

use std::rc::Rc;

use rquickjs::function::{IntoArgs, This};
use rquickjs::{Ctx, Function, IntoJs as _, Module, Object, Promise, Value};
use serde_json::Value as Json;

use crate::error::PluginError;
use crate::exports::{ExportFault, Exports, kind, with_declared};
use crate::fault::{blame, blame_source, blame_value};
use crate::inbox::{Callee, Inbox};
use crate::json::{self, Budget};
use crate::meta;
use crate::outbox::Settled;
use crate::session::{Host, Session};

/// The largest event or payload, in or out, as memory takes it about. Unit: bytes.
const MAX_VALUE_BYTES: usize = 16 * 1024 * 1024;

/// What is at work while the file is read, and between calls.
const FILE: &str = "its file";
const BETWEEN: &str = "what nobody waited for";

/// A plugin that runs.
pub(crate) struct Instance<'js> {
    ctx: Ctx<'js>,
    session: Rc<Session>,
    exports: Exports<'js>,
    meta: Object<'js>,
}

impl<'js> Instance<'js> {
    /// Reads the file and sets the plugin up.
    pub(crate) fn start(ctx: &Ctx<'js>, session: &Rc<Session>, inbox: &mut Inbox) -> Result<Self, PluginError> {
        let ground = Ground { ctx, session, function: FILE };
        ground.begin();
        let instance = ground.read(inbox);
        let instance = ground.end(instance)?;
        if let Some(setup) = &instance.exports.setup {
            instance.call("setupPlugin", inbox, setup, (instance.meta.clone(),), |_| Ok(()))?;
        }
        Ok(instance)
    }

    pub(crate) fn exports(&self) -> &Exports<'js> {
        &self.exports
    }

    /// Gives an event to the plugin. `room` is what its result may take at most, and what is left then.
    pub(crate) fn process_event(
        &self,
        event: &Json,
        room: &mut usize,
        inbox: &mut Inbox,
    ) -> Result<Option<Json>, PluginError> {
        const FUNCTION: &str = "processEvent";
        let Some(function) = &self.exports.process_event else { return Err(self.missing(FUNCTION)) };
        let limit = MAX_VALUE_BYTES.min(*room);
        let mut budget = Budget::new(limit);
        let read = |value: Value<'js>| {
            if value.is_null() || value.is_undefined() {
                return Ok(None);
            }
            let json = json::from_js(&value, &mut budget).map_err(|fault| self.blame_value(FUNCTION, fault, limit))?;
            match json {
                Some(event @ Json::Object(_)) => Ok(Some(event)),
                _ => Err(PluginError::WrongType { plugin: self.host().definition.name.clone(), got: kind(&value) }),
            }
        };
        let event = self.argument(FUNCTION, event)?;
        let result = self.call(FUNCTION, inbox, function, (event, self.meta.clone()), read)?;
        *room -= limit - budget.left();
        Ok(result)
    }

    /// Has the plugin do something for its effects.
    pub(crate) fn run(&self, target: &Callee, payload: &Json, inbox: &mut Inbox) -> Result<(), PluginError> {
        match target {
            Callee::Job(name) => {
                let Some((jobs, job)) = self.exports.jobs.get(name) else {
                    let known = self.exports.jobs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                    let known = if known.is_empty() { "none".to_owned() } else { known };
                    let plugin = self.host().definition.name.clone();
                    return Err(PluginError::UnknownJob { plugin, job: name.clone(), known });
                };
                let function = format!("job `{name}`");
                let payload = self.argument(&function, payload)?;
                let arguments = (This(jobs.clone()), payload, self.meta.clone());
                self.call(&function, inbox, job, arguments, |_| Ok(()))
            }
            Callee::Retry(kind) => {
                const FUNCTION: &str = "onRetry";
                let Some(function) = &self.exports.on_retry else { return Err(self.missing(FUNCTION)) };
                let payload = self.argument(FUNCTION, payload)?;
                self.call(FUNCTION, inbox, function, (kind.as_str(), payload, self.meta.clone()), |_| Ok(()))
            }
        }
    }

    /// Lets the plugin end what it has begun.
    pub(crate) fn tear_down(&self, inbox: &mut Inbox) -> Result<(), PluginError> {
        match &self.exports.teardown {
            Some(function) => self.call("teardownPlugin", inbox, function, (self.meta.clone(),), |_| Ok(())),
            None => Ok(()),
        }
    }

    /// Goes on with what waited for a job that nobody else waited for; `true` when that spent the runtime.
    pub(crate) fn hear(&self, settled: Settled) -> bool {
        let ground = self.ground(BETWEEN);
        ground.begin();
        let outcome = ground.settle(settled).and_then(|()| ground.pump());
        let outcome = ground.end(outcome);
        outcome.is_err_and(|error| {
            tracing::warn!(%error, "a plugin failed between calls");
            error.spends_runtime()
        })
    }

    /// Calls a function, runs all that it has begun, and reads what it returned, all within its time.
    fn call<A: IntoArgs<'js>, T>(
        &self,
        name: &str,
        inbox: &mut Inbox,
        function: &Function<'js>,
        arguments: A,
        read: impl FnOnce(Value<'js>) -> Result<T, PluginError>,
    ) -> Result<T, PluginError> {
        let ground = self.ground(name);
        ground.begin();
        let returned = function.call::<_, Value<'js>>(arguments).map_err(|error| ground.blame(error));
        let outcome = returned.and_then(|value| ground.wait(value, inbox)).and_then(read);
        ground.end(outcome)
    }

    fn argument(&self, function: &str, json: &Json) -> Result<Value<'js>, PluginError> {
        let value = json::to_js(&self.ctx, json, &mut Budget::new(MAX_VALUE_BYTES));
        value.map_err(|fault| self.blame_value(function, fault, MAX_VALUE_BYTES))
    }

    fn blame_value(&self, function: &str, fault: json::JsonFault, limit: usize) -> PluginError {
        blame_value(&self.ctx, self.host(), function, fault, limit)
    }

    fn missing(&self, function: &'static str) -> PluginError {
        PluginError::Missing { plugin: self.host().definition.name.clone(), function }
    }

    fn ground<'a>(&'a self, function: &'a str) -> Ground<'a, 'js> {
        Ground { ctx: &self.ctx, session: &self.session, function }
    }

    fn host(&self) -> &Host {
        &self.session.host
    }
}

/// Where a call runs.
struct Ground<'a, 'js> {
    ctx: &'a Ctx<'js>,
    session: &'a Rc<Session>,
    /// What is called, for errors.
    function: &'a str,
}

impl<'js> Ground<'_, 'js> {
    /// Reads the plugin's file.
    fn read(&self, inbox: &mut Inbox) -> Result<Instance<'js>, PluginError> {
        let (ctx, host) = (self.ctx, self.session.host.as_ref());
        let native = meta::native(ctx, self.session).map_err(|error| self.blame(error))?;
        let factory = meta::factory(ctx).map_err(|error| self.blame(error))?;
        crate::console::install(ctx, self.session).map_err(|error| self.blame(error))?;
        let definition = &host.definition;
        let declare = |source: String| Module::declare(ctx.clone(), definition.file.as_str(), source);
        let module = declare(with_declared(&definition.source)).map_err(|error| {
            let error = blame_source(ctx, host, self.function, error);
            // The end that we added must not be where a mistake is found.
            match declare(definition.source.clone()) {
                Err(plain) => blame_source(ctx, host, self.function, plain),
                Ok(_) => error,
            }
        })?;
        let (module, promise) = module.eval().map_err(|error| self.blame(error))?;
        self.wait(promise.into_value(), inbox)?;
        let namespace = module.namespace().map_err(|error| self.blame(error))?;
        let exports = Exports::read(&definition.name, &namespace).map_err(|fault| match fault {
            ExportFault::Plugin(error) => error,
            ExportFault::Engine(error) => self.blame(error),
        })?;
        let config = json::to_js(ctx, &definition.config, &mut Budget::new(MAX_VALUE_BYTES))
            .map_err(|fault| blame_value(ctx, host, "meta.config", fault, MAX_VALUE_BYTES))?;
        let meta = self.meta(&factory, native, &exports, config).map_err(|error| self.blame(error))?;
        Ok(Instance { ctx: ctx.clone(), session: Rc::clone(self.session), exports, meta })
    }

    fn meta(
        &self,
        factory: &Function<'js>,
        native: Object<'js>,
        exports: &Exports<'js>,
        config: Value<'js>,
    ) -> rquickjs::Result<Object<'js>> {
        let functions = Object::new(self.ctx.clone())?;
        for (name, (_, function)) in &exports.jobs {
            functions.prop(name.as_str(), rquickjs::object::Property::from(function.clone()).enumerable())?;
        }
        factory.call((native, functions, exports.on_retry.is_some(), config))
    }

    /// What a value becomes: a promise is waited for, as long as there is something that may keep it.
    fn wait(&self, value: Value<'js>, inbox: &mut Inbox) -> Result<Value<'js>, PluginError> {
        let Some(promise) = self.promise(&value)? else {
            self.pump()?;
            return Ok(value);
        };
        loop {
            self.pump()?;
            match promise.result::<Value<'js>>() {
                Some(Ok(value)) => return Ok(value),
                Some(Err(error)) => {
                    self.session.forget(self.ctx, promise.as_value());
                    return Err(self.blame(error));
                }
                None if !self.session.has_promises() => {
                    let plugin = self.session.host.definition.name.clone();
                    return Err(PluginError::NeverResolves { plugin, function: self.function.to_owned() });
                }
                None => {
                    let settled = inbox.next_settled(self.session.host.clock.left());
                    self.settle(settled.ok_or_else(|| self.time_limit())?)?;
                }
            }
        }
    }

    /// A promise of the value, if it is one or behaves like one.
    fn promise(&self, value: &Value<'js>) -> Result<Option<Promise<'js>>, PluginError> {
        if let Some(promise) = value.as_promise() {
            return Ok(Some(promise.clone()));
        }
        let Some(object) = value.as_object() else { return Ok(None) };
        let then = object.get::<_, Value<'js>>("then").map_err(|error| self.blame(error))?;
        if !then.is_function() {
            return Ok(None);
        }
        let resolved = self.ctx.promise().and_then(|(promise, resolve, _reject)| {
            resolve.call::<_, ()>((object.clone().into_js(self.ctx)?,))?;
            Ok(promise)
        });
        resolved.map(Some).map_err(|error| self.blame(error))
    }

    /// Runs all that can be run now.
    fn pump(&self) -> Result<(), PluginError> {
        let clock = &self.session.host.clock;
        while !clock.is_over() && !clock.was_interrupted() {
            if !self.ctx.execute_pending_job() {
                return Ok(());
            }
            self.session.garbage.collect(self.ctx);
        }
        Err(self.time_limit())
    }

    fn settle(&self, settled: Settled) -> Result<(), PluginError> {
        self.session.settle(self.ctx, settled).map_err(|error| self.blame(error))
    }

    /// A call begins, with all its time and lines.
    fn begin(&self) {
        let host = &self.session.host;
        host.num_lines.set(0);
        host.clock.start(host.definition.limits.time);
    }

    /// A call ends: what nobody waited for is written, and an interruption that nobody saw is seen.
    fn end<T>(&self, outcome: Result<T, PluginError>) -> Result<T, PluginError> {
        self.session.report(self.ctx);
        let clock = &self.session.host.clock;
        let outcome = if clock.was_interrupted() { Err(self.time_limit()) } else { outcome };
        clock.stop();
        self.session.garbage.collect(self.ctx);
        outcome
    }

    fn blame(&self, error: rquickjs::Error) -> PluginError {
        blame(self.ctx, &self.session.host, self.function, error)
    }

    fn time_limit(&self) -> PluginError {
        let definition = &self.session.host.definition;
        let (plugin, function) = (definition.name.clone(), self.function.to_owned());
        PluginError::TimeLimit { plugin, function, limit: definition.limits.time }
    }
}
