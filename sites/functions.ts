import { AwsV4Signer } from 'aws4fetch'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, existsSync, readdirSync, readFileSync } from 'node:fs'
import { createServer, request as send, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { leash, type Leashed } from '../src/embedded/leash.ts'
import { freePort } from '../src/embedded/ports.ts'
import { folderAt, openGround, until } from './ground.ts'

/** A request that reached the gateway. */
export interface SeenCall {
  path: string
  kind: 'call' | 'poll' | 'cancel'
  name: string
  headers: IncomingMessage['headers']
  body: string
}

export interface PlatformAnswer {
  status: number
  headers: Record<string, string>
  body: Buffer
}

/**
 * A failure of the platform. It handles a call and returns whether it has answered; otherwise the
 * call proceeds as usual.
 */
export type Failure = (
  call: SeenCall,
  response: ServerResponse,
  forward: () => Promise<PlatformAnswer>,
) => Promise<boolean> | boolean

export interface FunctionsSite extends AsyncDisposable {
  readonly folder: string
  /** The functions framework itself, on loopback. */
  readonly framework: string
  /**
   * One address for all shapes: `/` as Cloud Run, `/function/…` and `/async-function/…` as
   * OpenFaaS, `/2015-03-31/functions/…` as Lambda.
   */
  readonly gateway: string
  /** The only access key that the Lambda gateway knows. */
  readonly accessKey: { accessKeyId: string; secretAccessKey: string }
  /** The bearer token that `/` and OpenFaaS require, where one is set. */
  token: string | undefined
  readonly seen: SeenCall[]
  /** The number of calls (without polls and cancels) with a name. */
  calls(name: string): number
  failure: Failure | undefined
  /** Kills the function's process. Its commands keep running, and its ledger stays. */
  kill(): Promise<void>
  /** Starts the function again at the same address. */
  start(): Promise<void>
  log(): string
  stop(): Promise<void>
}

const region = 'eu-central-1'
/** Limits of AWS: requests and answers of synchronous calls; events are smaller. */
const lambdaLimits = { RequestResponse: 6 * 1024 * 1024, Event: 256 * 1024 }

const bodyOf = async (message: IncomingMessage): Promise<Buffer> => {
  const chunks: Buffer[] = []
  for await (const chunk of message) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

/**
 * Functions as platforms serve them: `examples/functions` in the real functions framework, behind a
 * gateway with the protocols of OpenFaaS and Lambda. The gateway checks Lambda's signatures, and it
 * injects the failures.
 */
export const startFunctions = async (): Promise<FunctionsSite> => {
  const ground = openGround('functions')
  const port = await freePort()
  const logFile = join(ground.folder, 'log')
  const ledger = folderAt(join(ground.folder, 'ledger'), 0o700)
  const framework = `http://127.0.0.1:${port}/`
  const accessKey = { accessKeyId: 'AKIAEXAMPLE', secretAccessKey: 'example-secret/key' }
  let running: Leashed | undefined

  const start = async (): Promise<void> => {
    running = await leash({
      command: [process.execPath, import.meta.filename, String(port)],
      environment: {
        PATH: '/usr/local/bin:/usr/bin:/bin',
        TMPDIR: ground.folder,
        CALL_LEDGER: ledger,
        NODE_ENV: 'production',
      },
      directory: '/',
      logFile,
      softSignal: 'TERM',
      patienceSeconds: 5,
    })
    await until(
      'the functions framework',
      () =>
        fetch(framework, {
          method: 'POST',
          body: '{}',
          headers: { 'content-type': 'application/json' },
        }).then(
          () => true,
          () => false,
        ),
      () => readFileSync(logFile, 'utf8'),
    )
  }

  const forward = (body: Buffer, headers: Record<string, string>): Promise<PlatformAnswer> =>
    new Promise((resolve, reject) => {
      const asked = send(framework, {
        method: 'POST',
        headers: { ...headers, 'content-type': 'application/json', 'content-length': body.length },
      })
      asked.on('error', reject)
      asked.on('response', (answer) => {
        bodyOf(answer).then(
          (content) => resolve({ status: answer.statusCode ?? 0, headers: {}, body: content }),
          reject,
        )
      })
      asked.end(body)
    })

  const isSigned = async (request: IncomingMessage, body: Buffer): Promise<boolean> => {
    const { authorization = '' } = request.headers
    const headers = Object.fromEntries(
      (/SignedHeaders=([^,]+)/.exec(authorization)?.[1] ?? '')
        .split(';')
        .filter((name) => name !== 'host')
        .map((name) => [name, String(request.headers[name] ?? '')]),
    )
    const signer = new AwsV4Signer({
      ...accessKey,
      ...{
        method: 'POST',
        url: `http://${request.headers.host ?? ''}${request.url ?? ''}`,
        body,
        headers,
        service: 'lambda',
        region,
      },
      datetime: String(request.headers['x-amz-date'] ?? ''),
    })
    return authorization === (await signer.authHeader()) && /host;.*x-amz-date/.test(authorization)
  }

  const answer = (
    response: ServerResponse,
    status: number,
    body: unknown,
    headers: Record<string, string> = {},
  ): void => {
    const bytes = Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body))
    response.writeHead(status, {
      'content-type': 'application/json',
      'content-length': bytes.length,
      ...headers,
    })
    response.end(bytes)
  }

  const site: Omit<FunctionsSite, 'gateway' | typeof Symbol.asyncDispose> & { stop(): Promise<void> } = {
    folder: ground.folder,
    framework,
    accessKey,
    token: undefined,
    seen: [],
    calls: (name) => site.seen.filter((call) => call.kind === 'call' && call.name === name).length,
    failure: undefined,
    async kill() {
      running?.kill()
      await running?.ended
    },
    start,
    log: () => readFileSync(logFile, 'utf8'),
    async stop() {
      server.closeAllConnections()
      server.close()
      await running?.release()
      await ground.leave()
    },
  }

  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const body = await bodyOf(request)
    const path = request.url ?? '/'
    const document = JSON.parse(body.toString()) as { name?: string; poll?: boolean; cancel?: boolean }
    const kind = document.poll === true ? 'poll' : document.cancel === true ? 'cancel' : 'call'
    const seen: SeenCall = {
      path,
      kind,
      name: document.name ?? '',
      headers: request.headers,
      body: body.toString(),
    }
    site.seen.push(seen)
    const id = randomUUID()
    const forwardThis = (): Promise<PlatformAnswer> => forward(body, { 'x-request-id': id })
    if (site.failure !== undefined && (await site.failure(seen, response, forwardThis))) return
    const lambda = /^\/2015-03-31\/functions\/([^/]+)\/invocations$/.exec(path)
    const faas = /^\/(async-)?function\/([^/]+)$/.exec(path)
    if (lambda !== null) {
      const type = request.headers['x-amz-invocation-type'] === 'Event' ? 'Event' : 'RequestResponse'
      const known = { 'x-amzn-requestid': id }
      if (!(await isSigned(request, body)))
        return answer(
          response,
          403,
          { message: 'The request signature we calculated does not match the signature you provided.' },
          known,
        )
      if (lambda[1] !== 'command')
        return answer(response, 404, { Message: `Function not found: ${String(lambda[1])}` }, known)
      if (body.length > lambdaLimits[type])
        return answer(response, 413, { Message: 'Request must be smaller than the limit' }, known)
      if (type === 'Event') {
        void forwardThis().catch(() => undefined)
        return answer(response, 202, Buffer.alloc(0), known)
      }
      // Lambda has no status of the function: the function's result is the body.
      return answer(response, 200, (await forwardThis()).body, known)
    }
    if (site.token !== undefined && request.headers.authorization !== `Bearer ${site.token}`)
      return answer(response, 401, { error: 'who are you?' })
    if (faas?.[1] !== undefined) {
      const callback = request.headers['x-callback-url']
      void forwardThis()
        .then(async (made) => {
          if (typeof callback === 'string')
            await fetch(callback, {
              method: 'POST',
              body: new Uint8Array(made.body),
              headers: { 'content-type': 'application/json', 'x-call-id': id },
            })
        })
        .catch(() => undefined)
      return answer(response, 202, Buffer.alloc(0), { 'x-call-id': id })
    }
    if (faas !== null && faas[2] !== 'command') return answer(response, 404, { error: 'no such function' })
    const made = await forwardThis()
    answer(response, made.status, made.body, { 'x-call-id': id })
  }
  const server = createServer((request, response) => {
    serve(request, response).catch(() => {
      if (response.headersSent) response.destroy()
      else answer(response, 502, { error: 'the function is away' })
    })
  })
  try {
    await start()
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
  } catch (error) {
    await site.stop()
    throw error
  }
  const gateway = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return Object.assign(site, { gateway, [Symbol.asyncDispose]: () => site.stop() })
}

/** Waits, then lets the call proceed. */
export const slow =
  (seconds: number): Failure =>
  async () => {
    await sleep(seconds * 1000)
    return false
  }

// The file is also a program: it serves the framework with the function on loopback, because the
// framework's own program would listen on every address.
if (process.argv[1] === import.meta.filename) {
  // Open files of the tests must not reach a command. Node's own files are closed at exec.
  for (const fd of readdirSync('/proc/self/fd').map(Number)) {
    if (fd <= 2 || !existsSync(`/proc/self/fdinfo/${fd}`)) continue
    const flags = /^flags:\s+(\d+)/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '0'
    if ((Number.parseInt(flags, 8) & 0o2000000) === 0) closeSync(fd)
  }
  const entry = join(import.meta.dirname, '../examples/functions/index.js')
  await import(entry)
  const { getTestServer } = await import('@google-cloud/functions-framework/testing')
  getTestServer('command').listen(Number(process.argv[2]), '127.0.0.1').setTimeout(0)
}
