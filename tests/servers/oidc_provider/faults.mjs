// Faults, and what it takes to spoil an answer: reading ahead and holding back.

import http from 'node:http';

import { ENDPOINTS } from './log.mjs';

const FAULT_KEYS = new Set([
  'endpoint', 'grant_type', 'client_id', // which requests; all that are given must match
  'skip', 'count', // let the first ones pass; how many are hit
  'delay_ms', 'delay_after_ms', // before processing; between processing and answer
  'status', 'headers', 'body', // answered instead of the provider
  'drop', // "before" or "after" processing, without a byte of answer
  'reset', // with drop or truncate: RST instead of FIN
  'truncate', // "connection": cut in the body; "body": a shorter body, well framed
  'garble', // same length, neither UTF-8 nor JSON
]);

export function checkFault(fault) {
  const unknown = Object.keys(fault).filter((key) => !FAULT_KEYS.has(key));
  if (unknown.length) throw new TypeError(`unknown in a fault: ${unknown.join(', ')}`);
  const full = { endpoint: 'token', skip: 0, count: 1, delay_ms: 0, delay_after_ms: 0, ...fault };
  if (full.truncate === true) full.truncate = 'connection';
  if (![undefined, 'before', 'after'].includes(full.drop)) throw new TypeError('drop is "before" or "after"');
  if (![undefined, false, 'connection', 'body'].includes(full.truncate)) {
    throw new TypeError('truncate is "connection" or "body"');
  }
  if (!Object.values(ENDPOINTS).includes(full.endpoint)) throw new TypeError('unknown endpoint');
  return full;
}

export function nextFault(faults, entry) {
  for (const fault of faults) {
    const hit = ['endpoint', 'grant_type', 'client_id'].every(
      (key) => fault[key] === undefined || fault[key] === entry[key],
    );
    if (!hit || fault.count === 0) continue;
    if (fault.skip > 0) {
      fault.skip -= 1;
      continue;
    }
    fault.count -= 1;
    return fault;
  }
  return undefined;
}

export function nameOf(fault) {
  if (fault.status !== undefined) return `status ${fault.status}`;
  if (fault.drop) return `drop ${fault.drop}`;
  if (fault.truncate) return `truncate ${fault.truncate}`;
  return fault.garble ? 'garble' : 'delay';
}

export function hangUp(req, fault) {
  if (fault.reset) req.socket.resetAndDestroy();
  else req.socket.destroy();
}

// Holds back what the provider writes, so that an answer can be lost or spoilt afterwards.
export function holdBack(res) {
  const chunks = [];
  const { write, end, flushHeaders } = res;
  const keep = (chunk, encoding) => {
    if (chunk && typeof chunk !== 'function') {
      chunks.push(Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8'));
    }
  };
  res.write = (chunk, encoding) => { keep(chunk, encoding); return true; };
  res.end = (chunk, encoding) => { keep(chunk, encoding); return res; };
  res.flushHeaders = () => {};
  return () => {
    Object.assign(res, { write, end, flushHeaders });
    return Buffer.concat(chunks);
  };
}

// The request as the provider reads it. Its body was read before (a fault may depend on
// it), and it does not break off when the client has gone away.
export function replay(req, body) {
  const copy = new http.IncomingMessage(req.socket);
  const { method, url, headers, rawHeaders, httpVersion, httpVersionMajor, httpVersionMinor } = req;
  Object.assign(copy, { method, url, headers, rawHeaders, httpVersion, httpVersionMajor, httpVersionMinor });
  copy.complete = true;
  copy.push(body);
  copy.push(null);
  return copy;
}

export async function readBody(req) {
  const chunks = [];
  for await (const chunk of req) chunks.push(chunk);
  return Buffer.concat(chunks);
}
