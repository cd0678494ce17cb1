/**
 * The function as platforms load it: `command` for the functions framework (Cloud Run, Knative,
 * OpenFaaS behind its HTTP watchdog), `handler` for AWS Lambda's Node.js runtime.
 *
 * CALL_LEDGER names the folder that stores the answers. Without it each instance stores its own,
 * and that suffices for one instance. Several instances need a folder that all of them share (a
 * mounted bucket, EFS).
 */
import { mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openCommandFunction } from './command.js'

const ledger = process.env.CALL_LEDGER ?? join(tmpdir(), 'call-ledger')
mkdirSync(ledger, { recursive: true, mode: 0o700 })
const command = openCommandFunction({ ledger, path: process.env.PATH ?? '/usr/local/bin:/usr/bin:/bin' })

/**
 * AWS Lambda: the event is the request, the result the answer. A frozen instance runs no code, so
 * it answers at the end for any kind of request.
 */
export const handler = async (event, context) => {
  const { body } = await command(
    { ...event, ...(event.respond === 'poll' ? { respond: 'answer' } : {}) },
    context?.awsRequestId,
    true,
  )
  return body
}

/** Any HTTP platform: the request's JSON is the request. */
export const onRequest = (request, response) => {
  command(request.body, request.get('x-request-id'), false).then(
    ({ status, body }) => response.status(status).json(body),
    (error) => response.status(500).json({ error: String(error?.message ?? error) }),
  )
}

if (process.env.AWS_LAMBDA_FUNCTION_NAME === undefined) {
  const { http } = await import('@google-cloud/functions-framework')
  http('command', onRequest)
}
