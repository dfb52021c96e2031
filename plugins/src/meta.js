// Makes `meta`, which a plugin's functions get: once per runtime, from what only the host can do. The host's functions
// trust their arguments, so they are checked here, with sentences that say what was wrong.
(native, functions, canRetry, config) => {
  "use strict";
  // Without this, JSON.stringify fails on rows with large integers.
  Object.defineProperty(BigInt.prototype, "toJSON", {
    value() { return JSON.rawJSON(String(this)); },
    configurable: true,
    writable: true,
  });
  const known = Object.keys(functions).join(", ") || "none";

  // An object in which every job's name is a function. Others are, too, and say which names there are.
  const named = (enqueue) => new Proxy({}, {
    get(_target, name) {
      if (Object.hasOwn(functions, name)) return (payload) => enqueue(name, payload);
      // Whoever awaits the object itself asks for these.
      if (typeof name === "symbol" || name === "then") return undefined;
      return () => { throw new TypeError(`the plugin has no job \`${name}\`; it has ${known}`); };
    },
  });

  const later = (number, unit) => {
    if (!Number.isSafeInteger(number)) throw new RangeError(`runIn takes a whole number of units, not ${String(number)}`);
    return native.after(number, String(unit));
  };
  const instant = (date) => {
    if (typeof date === "string") return native.parse(date);
    if (!(date instanceof Date)) throw new TypeError(`runAt takes a Date or its text, not ${String(date)}`);
    const milliseconds = date.getTime();
    if (Number.isNaN(milliseconds)) throw new RangeError("runAt got a Date that is no time; check what it was made from");
    return milliseconds;
  };
  const seconds = (what, number) => {
    if (!Number.isFinite(number) || number < 0) throw new RangeError(`${what} takes a number of seconds, not ${String(number)}`);
    return number;
  };

  // All functions that do something are async: a mistake is a promise that fails, and never ends a call that doesn't wait for
  // it. Only a name that isn't there throws at once.
  const meta = {
    config,
    global: {},
    jobs: named((name, payload) => ({
      async runNow() { await native.enqueue(name, payload, null); },
      async runIn(number, unit) { await native.enqueue(name, payload, later(number, unit)); },
      async runAt(date) { await native.enqueue(name, payload, instant(date)); },
    })),
    // The same in an older order of words.
    tasks: {
      runNow: () => named(async (name, payload) => { await native.enqueue(name, payload, null); }),
      runIn: (number, unit) => named(async (name, payload) => { await native.enqueue(name, payload, later(number, unit)); }),
      runAt: (date) => named(async (name, payload) => { await native.enqueue(name, payload, instant(date)); }),
      runDirectly: () => named(async (name, payload) => functions[name](payload, meta)),
    },
    async retry(type, payload, delay = 30) {
      if (!canRetry) throw new TypeError("retry needs the plugin to export onRetry");
      if (typeof type !== "string") throw new TypeError(`retry takes the name of what is tried again, not ${String(type)}`);
      if (!(typeof delay === "number" && delay >= 1 && delay <= 86400)) {
        throw new RangeError(`retry takes 1 to 86400 seconds, not ${String(delay)}`);
      }
      await native.retry(type, payload, delay);
    },
    cache: {
      async get(key, fallback = null) {
        const value = native.cacheGet(String(key));
        return value === undefined ? fallback : value;
      },
      async set(key, value, ttl = null) {
        native.cacheSet(String(key), value, ttl === null ? null : seconds("cache.set", ttl));
      },
      async incr(key) { return native.cacheIncr(String(key)); },
      async expire(key, ttl) { return native.cacheExpire(String(key), seconds("cache.expire", ttl)); },
    },
  };
  return meta;
}
