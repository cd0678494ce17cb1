import { hostname } from 'node:os'
import { reasonText } from '../../../outside-text.ts'
import { DriverError, type Collected, type TaskState } from '../contract/driver.ts'
import { emptyResult, noEndOf } from '../contract/results.ts'
import { stderrTailBytes, undelivered } from '../local/collect.ts'
import { outputManifest } from '../local/manifest.ts'
import { amountsFrom } from '../local/staging.ts'
import type { FunctionSite } from './site.ts'

/**
 * The full result of a call that is over. @throws DriverError `refused` where no retry helps,
 * `unknown` while it has no end
 */
export async function collectCall(
  { options, calls }: FunctionSite,
  name: string,
  state: TaskState,
  signal: AbortSignal,
): Promise<Collected> {
  const record = calls.record(name)
  const end = calls.end(name)
  const { runtime } = options
  if (record?.form === 'buried') return emptyResult(state, { at: record.at, runtime, hostname: hostname() })
  if (end?.form === 'failed' && end.trouble === 'refused') throw new DriverError('refused', end.message)
  if (record === undefined || end?.form !== 'ended') throw noEndOf(name)
  const { directory, expectedOutputs, submittedAt, sources } = record.facts
  const { startedAt, wallSeconds, cpuSeconds, peakMemoryBytes, detail } = end
  const staged = calls.staged(name)
  const sentAt = calls.sentAt(name) ?? submittedAt
  const manifest = await outputManifest({
    runtime,
    hostname: hostname(),
    root: directory,
    staged,
    startedAt: sentAt,
    signal,
  })
  const warnings = [...(manifest.warnings ?? []), ...(end.warnings ?? [])]
  return {
    state: signal.aborted && state.state === 'ended' ? { ...state, reason: 'cancelled' } : state,
    submittedAt: Math.min(submittedAt, startedAt),
    queueSeconds: Math.max(0, sentAt - submittedAt),
    wallSeconds,
    cpuSeconds,
    peakMemoryBytes,
    measuredBy: cpuSeconds === null && peakMemoryBytes === null ? 'none' : 'sampled',
    manifest: warnings.length === 0 ? manifest : { ...manifest, warnings },
    ...(sources === undefined ? {} : { staged: amountsFrom(sources, staged) }),
    ...undelivered(directory, expectedOutputs),
    stderrTail: reasonText(calls.readLog(name, 'err', { tail: stderrTailBytes }).bytes),
    detail,
  }
}
