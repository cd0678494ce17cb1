import type { FunctionCredential, FunctionResponse } from '../../../clients/functions.ts'
import { DriverError } from '../contract/driver.ts'
import { messageOf } from '../contract/errno.ts'
import { asDriverError } from '../contract/results.ts'
import { LinkError } from '../../../shell/site-shell.ts'
import { clock, troubleOf, type FunctionSite } from './site.ts'

/**
 * A credential is opened again after this time: each opening is recorded, and calls may be many.
 */
const credentialSeconds = 60

/** Sends bytes to the function of a runtime; rejects with its platform's message. */
export type Ask = (
  name: string,
  body: Buffer,
  more: {
    deadlineSeconds: number
    signal?: AbortSignal
    asynchronous?: boolean
    callbackUrl?: string | undefined
    onSent?: () => void
  },
) => Promise<FunctionResponse>

export const cancelBody = (name: string, seconds: number): Buffer =>
  Buffer.from(JSON.stringify({ schemaVersion: 1, name, cancel: true, graceSeconds: seconds }))
export const pollBody = (name: string): Buffer =>
  Buffer.from(JSON.stringify({ schemaVersion: 1, name, poll: true }))

export function openAsking({ options, settings }: FunctionSite): Ask {
  let opened: { credential: Promise<FunctionCredential>; at: number } | undefined
  const credentialOf = async (open: () => Promise<FunctionCredential>): Promise<FunctionCredential> => {
    if (opened === undefined || clock() > opened.at + credentialSeconds)
      opened = { credential: open(), at: clock() }
    const { credential } = opened
    try {
      return await credential
    } catch (error) {
      opened = undefined
      if (error instanceof DriverError || error instanceof LinkError) throw asDriverError(error)
      throw new DriverError('refused', messageOf(error), { cause: error })
    }
  }

  return async (name, body, more) => {
    const { configuration } = settings()
    const { shape, endpoint, region, certificateAuthority, answerLimitBytes } = configuration
    const target = { shape, endpoint, function: configuration.function, region, certificateAuthority }
    const request = { name, body, answerLimitBytes, fresh: !configuration.idempotent, ...more }
    const { credential } = options
    if (credential === undefined) return options.invoke(target, request)
    const given = await credentialOf(credential)
    try {
      return await options.invoke(target, { ...request, credential: given })
    } catch (error) {
      if (troubleOf(error).trouble !== 'login') throw error
      // It may have been replaced since it was opened; another call may have opened it again
      // already.
      if ((await opened?.credential.catch(() => undefined)) === given) opened = undefined
      return options.invoke(target, { ...request, credential: await credentialOf(credential) })
    }
  }
}
