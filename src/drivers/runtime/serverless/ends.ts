import type { FunctionResponse } from '../../../clients/functions.ts'
import { DriverError, type PlaceDetail } from '../contract/driver.ts'
import { isErrno, messageOf } from '../contract/errno.ts'
import type { CallFacts, CallRecords, KeptAnswer } from './calls.ts'
import { applyOutputs } from './files.ts'
import { checkOutputs, placeRun } from './protocol.ts'
import { clock, type FunctionSite } from './site.ts'

/** Turns a kept answer into an end. False: there is no answer. */
export const settle = async (
  { calls, settings }: FunctionSite,
  name: string,
  facts: CallFacts,
): Promise<boolean> => {
  const kept = await calls.answer(name)
  if (kept === undefined) return calls.end(name) !== undefined
  const { answer, receivedAt, requestId } = kept
  const sentAt = calls.sentAt(name) ?? facts.submittedAt
  try {
    checkOutputs(answer, {
      expectedOutputs: facts.expectedOutputs,
      outputs: settings().configuration.outputs,
    })
    await applyOutputs(calls, name, facts.directory, answer)
    calls.saveLog(name, 'out', Buffer.from(answer.stdout, 'base64'))
    calls.saveLog(name, 'err', Buffer.from(answer.stderr, 'base64'))
  } catch (error) {
    if (calls.end(name) !== undefined) return true
    // Names and folders of an answer that cannot be made here never can; a full disk may pass.
    const isItsFault =
      error instanceof DriverError ||
      isErrno(error, 'ENAMETOOLONG', 'ENOTDIR', 'EISDIR', 'ELOOP', 'EEXIST', 'EINVAL')
    if (!isItsFault) throw error
    fail(calls, name, 'refused', messageOf(error))
    return true
  }
  const placed = placeRun(answer, sentAt, receivedAt)
  const id = answer.requestId ?? requestId
  const detail: PlaceDetail = {
    ...(answer.coldStart === true ? { coldStartSeconds: placed.startedAt - sentAt } : {}),
    ...(id === undefined ? {} : { requestId: id }),
  }
  calls.keepEnd(name, {
    form: 'ended',
    ...placed,
    exitCode: answer.exitCode,
    signal: answer.signal ?? null,
    reason: answer.reason,
    cpuSeconds: answer.cpuSeconds ?? null,
    peakMemoryBytes: answer.peakMemoryBytes ?? null,
    detail,
    ...(answer.warnings === undefined ? {} : { warnings: answer.warnings }),
  })
  return true
}

export const fail = (
  calls: CallRecords,
  name: string,
  trouble: 'refused' | 'infrastructure',
  message: string,
): void => {
  const at = clock()
  calls.keepEnd(name, { form: 'failed', at, startedAt: calls.sentAt(name) ?? at, trouble, message })
}

export const endUnanswered = (
  calls: CallRecords,
  name: string,
  reason: 'cancelled' | 'walltime' | 'memory',
): void => {
  const finishedAt = clock()
  const startedAt = calls.sentAt(name) ?? finishedAt
  const used = { wallSeconds: finishedAt - startedAt, cpuSeconds: null, peakMemoryBytes: null, detail: {} }
  calls.keepEnd(name, { form: 'ended', startedAt, finishedAt, exitCode: null, signal: null, reason, ...used })
}

export const keep = (
  calls: CallRecords,
  name: string,
  answer: KeptAnswer['answer'],
  response: FunctionResponse,
): Promise<boolean> => calls.keepAnswer(name, { answer, receivedAt: clock(), requestId: response.requestId })
