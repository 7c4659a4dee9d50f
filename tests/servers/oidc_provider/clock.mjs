// The clock of this process, which a test can shift: `Date` tells the shifted time, and
// oidc-provider reads nothing else. Timers are not touched.

const RealDate = Date;
let offset = 0; // milliseconds

globalThis.Date = class Date extends RealDate {
  constructor(...values) {
    if (values.length) super(...values);
    else super(RealDate.now() + offset);
  }

  static now() { return RealDate.now() + offset; }
};

export const realNow = () => RealDate.now();

export function shiftClock(seconds) { offset = seconds * 1000; }

// Node writes this header itself, by a clock that cannot be shifted.
export function stampDate(res) { res.setHeader('Date', new Date().toUTCString()); }
