import { createReadStream, lstatSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { DriverError } from '../../drivers/runtime/contract/driver.ts'
import { isErrno } from '../../drivers/runtime/contract/errno.ts'
import {
  isCallName,
  openCalls,
  uploadedBytes,
  type CallFacts,
} from '../../drivers/runtime/serverless/calls.ts'
import type { CallLinks, LinkPurpose } from '../../drivers/runtime/serverless/links.ts'
import { excerpt, mostFiles, readAnswer } from '../../drivers/runtime/serverless/protocol.ts'
import { isInside } from '../../drivers/runtime/contract/links.ts'
import { pathOfShown, systemPath } from '../../outside-path.ts'
import { missing, Refusal, unacceptableAt } from '../../refusal.ts'
import type { LinkQuery, OutputPart } from './schemas.ts'

/** The limit of one uploaded output. */
const largestOutput = 16 * 1024 ** 3

export interface FunctionCallParts {
  /** The root of the serverless runtimes' drivers. */
  root: string
  links: CallLinks
  /** Seconds since epoch. */
  clock: () => number
}

/** The actions of functions on the calls of this machine, each permitted by its own link. */
export const openFunctionCalls = ({ root, links, clock }: FunctionCallParts) => {
  const calls = openCalls(join(root, 'calls'))

  /**
   * @throws Refusal `unauthenticated` without a valid link, before any fact about the call is
   *   given; `missing` for an unknown call
   */
  const admitted = async (
    name: string,
    purpose: LinkPurpose,
    { expires = '', signature = '' }: LinkQuery,
  ): Promise<CallFacts> => {
    if (!isCallName(name) || !(await links.verify(name, purpose, { expires, signature }, clock())))
      throw new Refusal(
        'unauthenticated',
        'this link does not hold: take it from the request of the call as it is, while the call is under way',
      )
    const record = calls.record(name)
    if (record?.form !== 'accepted') throw missing('function call', name)
    return record.facts
  }

  return {
    admitted,

    /** Keeps the first answer of a call. @returns false where the call had one, or has ended */
    async answer(name: string, query: LinkQuery, document: unknown): Promise<boolean> {
      await admitted(name, 'result', query)
      const body = Buffer.from(JSON.stringify(document ?? null))
      try {
        const answer = readAnswer(name, body)
        if (answer === 'running' || answer === 'unknown')
          throw unacceptableAt('state', `${answer} is no answer; send it at the end`)
        return await calls.keepAnswer(name, { answer, receivedAt: clock() })
      } catch (error) {
        if (error instanceof DriverError)
          throw unacceptableAt('', `${error.message} (${excerpt(body)})`.slice(0, 1000))
        throw error
      }
    },

    async input(
      name: string,
      listed: string,
      query: LinkQuery,
    ): Promise<{ stream: Readable; sizeBytes: number }> {
      const { directory } = await admitted(name, 'inputs', query)
      const path = pathOfShown(listed)
      // Only files staged for the call are read. A link was sent as a link and is not followed.
      if (!calls.staged(name).some((file) => file.path === path && file.target === undefined))
        throw missing('input', listed)
      const file = systemPath(join(directory, path))
      const facts = lstatSync(file, { throwIfNoEntry: false })
      if (facts?.isFile() !== true) throw missing('input', listed)
      return { stream: createReadStream(file, { end: Math.max(0, facts.size - 1) }), sizeBytes: facts.size }
    },

    /** @returns the number of stored bytes of the output */
    async upload(name: string, listed: string, query: LinkQuery, part: OutputPart): Promise<number> {
      const path = pathOfShown(listed)
      await admitted(name, 'outputs', query)
      if (calls.end(name) !== undefined || calls.hasAnswer(name))
        throw new Refusal(
          'conflict',
          `function call ${JSON.stringify(name)} has been answered; upload outputs before the answer`,
        )
      if (!isInside(path))
        throw unacceptableAt('path', `${JSON.stringify(listed)} must be a relative path without ..`)
      const content = Buffer.from(part.contentBase64, 'base64')
      if (part.offset + content.length > largestOutput)
        throw new Refusal(
          'too_large',
          `an output may have ${largestOutput} bytes; leave larger ones in a storage of their own`,
        )
      if (uploadedBytes(calls, name, path) === 0 && uploadsOf(name) >= mostFiles)
        throw new Refusal('too_large', `a call may upload ${mostFiles} outputs; pack them into fewer`)
      await calls.saveUpload(name, path, part.offset, content)
      return uploadedBytes(calls, name, path)
    },
  }

  function uploadsOf(name: string): number {
    try {
      return readdirSync(calls.path(name, 'outputs')).length
    } catch (error) {
      if (isErrno(error, 'ENOENT')) return 0
      throw error
    }
  }
}

export type FunctionCalls = ReturnType<typeof openFunctionCalls>
