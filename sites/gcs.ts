import { createHash, createVerify } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { leash } from '../src/embedded/leash.ts'
import { freePort } from '../src/embedded/ports.ts'
import { accountNamed, bearerOf, type GoogleServiceAccount, type ServiceAccount } from './google-account.ts'
import { goProgram } from './go-program.ts'
import { openGround, until } from './ground.ts'

const version = 'v1.56.1'
const storageScopes = /devstorage\.read_write|cloud-platform/

/**
 * Google Cloud Storage on loopback: fake-gcs-server behind a gate that checks tokens and signed
 * URLs as Google does, because the server itself checks none.
 */
export interface GcsSite extends AsyncDisposable {
  readonly folder: string
  readonly endpoint: string
  /** An account with all permissions. */
  readonly account: ServiceAccount
  /** An account with valid tokens and no permissions. */
  readonly stranger: ServiceAccount
  bucket(name: string): Promise<void>
  /** Makes a bucket public. */
  publish(name: string): void
  /** Methods and paths of all requests so far. */
  readonly requests: readonly string[]
  log(): string
  stop(): Promise<void>
}

/** The program, built from its Go module into the cache where it is missing. */
const program = (): Promise<string> =>
  goProgram({
    title: 'the GCS server',
    name: 'fake-gcs-server',
    ...{ module: 'github.com/fsouza/fake-gcs-server', version, go: '1.26' },
    source: 'github.com/fsouza/fake-gcs-server',
  })

/** Whether a URL is signed by the account and has not expired. */
const isSignedUrl = (url: URL, host: string, { file, publicKey }: GoogleServiceAccount): boolean => {
  const signature = url.searchParams.get('X-Goog-Signature') ?? ''
  const time = url.searchParams.get('X-Goog-Date') ?? ''
  const [email, ...place] = (url.searchParams.get('X-Goog-Credential') ?? '').split('/')
  const begin = Date.parse(time.replace(/^(....)(..)(..T..)(..)(..)Z$/, '$1-$2-$3:$4:$5Z'))
  if (
    email !== file.client_email ||
    Date.now() > begin + Number(url.searchParams.get('X-Goog-Expires')) * 1_000
  )
    return false
  const query = url.search.slice(1).replace(/&X-Goog-Signature=.*$/, '')
  const text = ['GET', url.pathname, query, `host:${host}\n`, 'host', 'UNSIGNED-PAYLOAD'].join('\n')
  const digest = createHash('sha256').update(text).digest('hex')
  return createVerify('RSA-SHA256')
    .update(['GOOG4-RSA-SHA256', time, place.join('/'), digest].join('\n'))
    .verify(publicKey, signature, 'hex')
}

interface Named {
  name: string
}

/**
 * A list page by page, prefixes and objects together in the order of their names, as Google returns
 * it. The server itself repeats all prefixes on each page.
 */
const listPage = async (server: string, url: URL): Promise<{ status: number; text: string }> => {
  const [limit, after] = [
    Number(url.searchParams.get('maxResults') ?? 1_000),
    url.searchParams.get('pageToken'),
  ]
  for (const name of ['maxResults', 'pageToken', 'fields']) url.searchParams.delete(name)
  const answer = await fetch(`${server}${url.pathname}${url.search}`)
  const text = await answer.text()
  if (!answer.ok) return { status: answer.status, text }
  const { items = [], prefixes = [] } = JSON.parse(text) as { items?: Named[]; prefixes?: string[] }
  const all = [...items.map((item) => ({ name: item.name, item })), ...prefixes.map((name) => ({ name }))]
    .filter(
      ({ name }) => after === null || Buffer.compare(Buffer.from(name), Buffer.from(after, 'base64url')) > 0,
    )
    .toSorted((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)))
  const page = all.slice(0, limit)
  return {
    status: 200,
    text: JSON.stringify({
      kind: 'storage#objects',
      items: page.flatMap((each) => ('item' in each ? [each.item] : [])),
      prefixes: page.flatMap((each) => ('item' in each ? [] : [each.name])),
      ...(all.length > limit
        ? { nextPageToken: Buffer.from(page.at(-1)?.name ?? '').toString('base64url') }
        : {}),
    }),
  }
}

/**
 * Starts the server and its gate; both end with this process. @throws Error with the end of the
 * server's log
 */
export const startGcs = async (): Promise<GcsSite> => {
  const command = await program()
  const ground = openGround('gcs')
  const port = await freePort()
  const logFile = join(ground.folder, 'log')
  const log = (): string => (existsSync(logFile) ? readFileSync(logFile, 'utf8') : '')
  const [account, stranger] = [accountNamed('account'), accountNamed('stranger')]
  const published = new Set<string>()
  const requests: string[] = []
  const server = `http://127.0.0.1:${port}`

  const pass = (asked: IncomingMessage, answer: ServerResponse, path: string): void => {
    const url = new URL(path, server)
    if (asked.method === 'GET' && /^\/storage\/v1\/b\/[^/]+\/o$/.test(url.pathname)) {
      listPage(server, url).then(
        ({ status, text }) => answer.writeHead(status, { 'content-type': 'application/json' }).end(text),
        () => answer.destroy(),
      )
      return
    }
    const inner = request(
      `${server}${path}`,
      { method: asked.method ?? 'GET', headers: { ...asked.headers, host: asked.headers.host ?? '' } },
      (response) => {
        answer.writeHead(response.statusCode ?? 502, response.headers)
        response.pipe(answer)
      },
    )
    inner.on('error', () => answer.destroy())
    asked.on('error', () => inner.destroy())
    asked.on('close', () => {
      if (!asked.complete) inner.destroy()
    })
    asked.pipe(inner)
  }
  const refuse = (answer: ServerResponse, code: number, message: string): void => {
    answer.writeHead(code, { 'content-type': 'application/json', connection: 'close' })
    answer.end(JSON.stringify({ error: { code, message } }))
  }
  const gate = createServer((asked, answer) => {
    const url = new URL(asked.url ?? '/', 'http://gate')
    requests.push(`${asked.method} ${url.pathname}`)
    const bucket = /^\/(?:(?:upload|download)\/)?storage\/v1\/b\/([^/]+)/.exec(url.pathname)?.[1] ?? ''
    const header = asked.headers.authorization
    if (header !== undefined) {
      const bearer = bearerOf(header, [account, stranger], storageScopes)
      if (bearer === undefined) return refuse(answer, 401, 'Invalid Credentials')
      if (bearer === stranger)
        return refuse(answer, 403, `${bearer.file.client_email} does not have storage.objects access`)
      return pass(asked, answer, asked.url ?? '/')
    }
    const isRead = asked.method === 'GET' || asked.method === 'HEAD'
    if (isRead && published.has(bucket)) return pass(asked, answer, asked.url ?? '/')
    const [, first = '', key = ''] = /^\/([^/]+)\/(.+)$/.exec(url.pathname) ?? []
    const isOpen = isRead && (published.has(first) || isSignedUrl(url, asked.headers.host ?? '', account))
    if (isOpen)
      return pass(
        asked,
        answer,
        `/download/storage/v1/b/${first}/o/${encodeURIComponent(decodeURIComponent(key))}?alt=media`,
      )
    if (url.searchParams.has('X-Goog-Signature')) return refuse(answer, 403, 'SignatureDoesNotMatch')
    refuse(answer, 401, 'Anonymous caller does not have storage.objects access')
  })
  await new Promise<void>((resolve) => gate.listen(0, '127.0.0.1', resolve))
  const endpoint = `http://127.0.0.1:${(gate.address() as AddressInfo).port}`
  const running = await leash({
    command: [
      command,
      ...['-backend', 'memory', '-scheme', 'http', '-host', '127.0.0.1', '-port', String(port)],
      ...['-external-url', endpoint, '-public-host', endpoint.replace('http://', '')],
    ],
    environment: { PATH: '/usr/bin:/bin', HOME: ground.folder },
    directory: '/',
    logFile,
    softSignal: 'TERM',
    patienceSeconds: 5,
  })
  const stop = async (): Promise<void> => {
    gate.closeAllConnections()
    await new Promise((resolve) => gate.close(resolve))
    await running.release()
    await ground.leave()
  }
  try {
    await until(
      'the GCS server',
      () =>
        fetch(`${server}/storage/v1/b`).then(
          ({ ok }) => ok,
          () => false,
        ),
      log,
    )
  } catch (error) {
    await stop()
    throw error
  }
  return {
    ...{
      folder: ground.folder,
      endpoint,
      account: account.file,
      stranger: stranger.file,
      requests,
      log,
      stop,
    },
    async bucket(name) {
      const answer = await fetch(`${server}/storage/v1/b`, {
        ...{ method: 'POST', body: JSON.stringify({ name }) },
        headers: { 'content-type': 'application/json' },
      })
      if (!answer.ok)
        throw new Error(`the bucket ${name} cannot be made: ${answer.status} ${await answer.text()}`)
    },
    publish: (name) => void published.add(name),
    [Symbol.asyncDispose]: stop,
  }
}
