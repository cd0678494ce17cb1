import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { runFolder } from './run-folder.ts'

/** A page of Debian's chromium, driven over its DevTools protocol. */
export interface BrowserPage {
  /** Opens an address and waits until its document is loaded. */
  open(url: string): Promise<void>
  /** Value of an expression in the page; promises are awaited. */
  evaluate<T>(expression: string): Promise<T>
  /** All text that the page shows. */
  text(): Promise<string>
  /**
   * Waits until an expression is true in the page. @throws Error with the page's text after the
   * given time
   */
  until(what: string, expression: string, seconds?: number): Promise<void>
  /** Addresses that the page requested since it was opened, as `METHOD url`. */
  requests: string[]
  close(): Promise<void>
}

interface Answer {
  id?: number
  method?: string
  params?: { request?: { method: string; url: string } }
  result?: Record<string, any>
  error?: { message: string }
}

const startWithinMs = 60_000

const poll = async <T>(ask: () => Promise<T | undefined>, ms: number): Promise<T | undefined> => {
  const end = Date.now() + ms
  for (;;) {
    const found = await ask()
    if (found !== undefined || Date.now() > end) return found
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}

/** Starts chromium without a window, on its own profile, which is removed with it. */
export const openBrowser = async (): Promise<BrowserPage> => {
  const profile = mkdtempSync(join(runFolder(), 'orrery-chromium-'))
  const child = spawn(
    '/usr/bin/chromium',
    [
      ...[
        '--headless=new',
        '--disable-gpu',
        '--no-first-run',
        '--no-default-browser-check',
        '--remote-debugging-port=0',
      ],
      // Run as root it has no sandbox; it opens only our own pages.
      ...[
        '--no-sandbox',
        '--disable-dev-shm-usage',
        '--disable-background-networking',
        '--disable-component-update',
      ],
      ...[`--user-data-dir=${profile}`, '--window-size=1600,1200', 'about:blank'],
    ],
    { stdio: 'ignore', env: { PATH: '/usr/bin:/bin', HOME: profile } },
  )
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  const portFile = join(profile, 'DevToolsActivePort')
  const port = await poll(
    async () =>
      existsSync(portFile) ? readFileSync(portFile, 'utf8').split('\n')[0] || undefined : undefined,
    startWithinMs,
  )
  if (port === undefined) throw new Error('chromium did not say where its DevTools are')
  const targets = (await (await fetch(`http://127.0.0.1:${port}/json/list`)).json()) as {
    type: string
    webSocketDebuggerUrl: string
  }[]
  const target = targets.find(({ type }) => type === 'page')
  if (target === undefined) throw new Error('chromium has no page')
  const socket = new WebSocket(target.webSocketDebuggerUrl)
  await new Promise<void>((resolve, reject) => {
    socket.onopen = () => resolve()
    socket.onerror = () => reject(new Error('the DevTools of chromium cannot be reached'))
  })
  const waiting = new Map<number, (answer: Answer) => void>()
  const requests: string[] = []
  socket.onmessage = ({ data }) => {
    const answer = JSON.parse(String(data)) as Answer
    if (answer.id !== undefined) waiting.get(answer.id)?.(answer)
    const request = answer.method === 'Network.requestWillBeSent' ? answer.params?.request : undefined
    if (request !== undefined) requests.push(`${request.method} ${request.url}`)
  }
  let last = 0
  const send = async (method: string, params: object = {}): Promise<Record<string, any>> => {
    const id = ++last
    const answer = await new Promise<Answer>((resolve) => {
      waiting.set(id, resolve)
      socket.send(JSON.stringify({ id, method, params }))
    })
    waiting.delete(id)
    if (answer.error !== undefined) throw new Error(`${method}: ${answer.error.message}`)
    return answer.result ?? {}
  }
  await send('Page.enable')
  await send('Network.enable')
  const evaluate = async <T>(expression: string): Promise<T> => {
    const { result, exceptionDetails } = await send('Runtime.evaluate', {
      expression,
      awaitPromise: true,
      returnByValue: true,
    })
    if (exceptionDetails !== undefined)
      throw new Error(`the page threw: ${JSON.stringify(exceptionDetails.exception?.description)}`)
    return result.value as T
  }
  const text = (): Promise<string> => evaluate<string>('document.body?.innerText ?? ""')
  return {
    requests,
    evaluate,
    text,
    async open(url) {
      requests.length = 0
      await send('Page.navigate', { url })
      await poll(
        async () =>
          (await evaluate<string>('document.readyState').catch(() => '')) === 'complete' ? true : undefined,
        60_000,
      )
    },
    async until(what, expression, seconds = 60) {
      const met = await poll(
        async () =>
          (await evaluate<boolean>(`Boolean(${expression})`).catch(() => false)) ? true : undefined,
        seconds * 1_000,
      )
      if (met === undefined)
        throw new Error(
          `not within ${String(seconds)} s: ${what}. The page shows:\n${(await text()).slice(0, 6_000)}`,
        )
    },
    async close() {
      socket.close()
      child.kill('SIGKILL')
      await ended
      rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
    },
  }
}
