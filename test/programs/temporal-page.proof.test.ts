import { expect } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { ReadyFacts } from '../../src/embedded/ready-file.ts'
import { ensureKeyFile } from '../../src/vault/keys.ts'
import { dataFolder, readyOf, removeFolder, startProgram, until, type Program } from '../failures/programs.ts'
import { openBrowser, type BrowserPage } from '../support/chromium.ts'
import { cloneDatabase, type TestDatabase } from '../support/database.ts'
import { needs } from '../support/needs.ts'
import { makeWorld } from '../support/worlds.ts'

const { afterAll, beforeAll, test } = needs('chromium')

// The page of the embedded Temporal server as an operator has it before him: a browser opens it,
// reads, and presses its buttons.

type Json = any

let folder: string
let database: TestDatabase
let daemon: Program
let ready: ReadyFacts
let page: BrowserPage
/** Of two tasks; the second one sleeps. */
let planId: string
/** Words of Markdown and HTML where people write names. */
const hostile =
  'mosaic *b* [l](http://evil.example) <img src=http://evil.example/x onerror="document.title=1">'

const send = async (method: string, path: string, body?: unknown): Promise<Json> => {
  const answer = await fetch(ready.baseUrl + path, {
    method,
    ...(body === undefined
      ? {}
      : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
  })
  const text = await answer.text()
  if (!answer.ok) throw new Error(`${method} ${path} answered ${String(answer.status)}: ${text}`)
  return text === '' ? undefined : JSON.parse(text)
}
const metrics = async (): Promise<string> => (await fetch(`${String(ready.adminUrl)}/metrics`)).text()
const runOf = async (id: string): Promise<Json> => (await send('GET', `/execution-runs/${id}/`)).run

beforeAll(async () => {
  folder = dataFolder()
  database = await cloneDatabase()
  await ensureKeyFile(join(folder, 'vault.key'))
  daemon = await startProgram('main', {
    SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
    SERVICE_DATA_DIR: folder,
    SERVICE_DATABASE_URL: database.url,
    SERVICE_VAULT_KEY_FILE: join(folder, 'vault.key'),
  })
  ready = await readyOf(daemon, folder)
  page = await openBrowser()
  const service = { post: (path: string, body: unknown) => send('POST', path, body) } as never
  const failing = await makeWorld(service, {
    name: 'failing',
    cores: [1],
    tasks: [{ name: 'a' }, { name: 'b', run: 'echo "<b>no</b> *disk*" >&2; exit 3', after: ['a'] }],
  })
  const long = await makeWorld(service, {
    name: 'long',
    cores: [4],
    tasks: [{ name: 'a' }, { name: 'b', run: 'sleep 600', after: ['a'] }],
  })
  await database.db.prepared('hostile', 'update workflow_definitions set name = $1 where id = $2', [
    hostile,
    failing.workflowId,
  ])
  await send('POST', '/execution-runs/', { id: 'broken', schedulePlanId: failing.planId, mode: 'real' })
  planId = long.planId
  await send('POST', '/execution-runs/', { id: 'pressed', schedulePlanId: planId, mode: 'real' })
  await until('the run has failed', 120, async () => (await runOf('broken')).status === 'failed')
  await until('pressed runs', 120, async () => (await runOf('pressed')).completedActivityCount === 1)
}, 600_000)
afterAll(async () => {
  await page?.close()
  daemon?.child.kill('SIGTERM')
  await daemon?.ended
  await database?.drop()
  if (folder !== undefined) removeFolder(folder)
}, 120_000)

/**
 * The page of a run's workflow. Under the load of other tests its first look takes a while, or the
 * page shows an error of its own, which says `Try a refresh`.
 */
const openRun = async (id: string, host = '127.0.0.1'): Promise<void> => {
  const base = String(ready.temporalUiUrl).replace('127.0.0.1', host)
  const heading = `document.querySelector('[data-testid="workflow-id-heading"]')`
  for (let looks = 1; ; looks += 1) {
    await page.open(`${base}/namespaces/default/workflows/${encodeURIComponent(`execution-run/${id}/1`)}`)
    const refresh = looks < 5 ? `|| document.body.innerText.includes('Try a refresh')` : ''
    await page.until(`the workflow of ${id}`, `${heading} ${refresh}`, 180)
    if (await page.evaluate<boolean>(`Boolean(${heading})`)) return
  }
}
const visible = (selector: string, words = ''): string =>
  `[...document.querySelectorAll(${JSON.stringify(selector)})].find((e) => e.checkVisibility() ` +
  `&& e.innerText.includes(${JSON.stringify(words)}))`
const press = async (selector: string, words = ''): Promise<void> => {
  await page.until(`a button ${selector} ${words}`, visible(selector, words))
  await page.evaluate(`${visible(selector, words)}.click()`)
}
/** Texts of the frames in which the page shows Markdown: summary, details, current details. */
const frames =
  `[...document.querySelectorAll('iframe')].map((frame) => ` +
  `frame.contentDocument?.body?.innerText.trim() ?? '')`

test('says which run of which workflow, and why it failed, and asks nobody outside', async () => {
  await openRun('broken')
  await page.until('why it failed', `document.body.innerText.includes('ended with exit code 3')`, 120)
  const text = await page.text()
  expect(text).toContain('Failed')
  expect(text).toContain('RunFailed')
  await press('a[href*="user-metadata"]')
  await page.until('three texts', `${frames}.length === 3 && ${frames}.every((text) => text !== '')`, 120)
  const [summary = '', details = '', current = ''] = await page.evaluate<string[]>(frames)
  expect(summary).toContain('mosaic b (l)(http://evil.example) ‹img src=http://evil.example/x')
  // The page sets its own quotation marks.
  expect(details.replaceAll(/[“”]/g, '"')).toContain(`${hostile} on failing`)
  expect(details).toContain('real, 2 activities, promised')
  expect(details).toContain(`${ready.baseUrl}/execution-runs/broken/`)
  expect(current).toContain('failed: 1 of 2 activities completed')
  const own = [ready.temporalUiUrl, ready.adminUrl].map((url) => new URL(String(url)).host)
  const hosts = page.requests
    .map((request) => request.slice(request.indexOf(' ') + 1))
    .filter((url) => url.startsWith('http'))
    .map((url) => new URL(url).host)
  expect([...new Set(hosts)].sort()).toEqual([...own].sort())
  expect(await page.evaluate('document.title')).not.toBe('1')
}, 600_000)

test('under localhost as well: Request Cancellation cancels the run', async () => {
  await openRun('pressed', 'localhost')
  await press('button', 'Request Cancellation')
  await press('[data-testid="cancel-confirmation-modal"] [data-testid="confirm-modal-button"]')
  await until('the record is cancelled', 120, async () => (await runOf('pressed')).status === 'cancelled')
  await page.until(
    'the page says so',
    `document.querySelector('[data-testid="workflow-status"]')?.innerText.includes('Canceled')`,
    120,
  )
  const [{ actorId, summary }] = await send(
    'GET',
    '/audit-events/?executionId=pressed&eventType=execution.run.cancel',
  )
  expect([actorId, summary]).toEqual([
    'temporal',
    "the cancel of run pressed was asked for on Temporal's page",
  ])
  // For a run that is over the page has no such button.
  await openRun('pressed', 'localhost')
  await page.until(
    'the status',
    `document.querySelector('[data-testid="workflow-status"]')?.innerText.includes('Canceled')`,
    120,
  )
  expect(await page.evaluate(`${visible('button', 'Request Cancellation')} === undefined`)).toBe(true)
}, 600_000)

/** Chooses an action of the page's menu, for a reset the first place that it offers, and confirms. */
const choose = async (action: 'terminate' | 'reset'): Promise<void> => {
  await press('button[aria-controls="workflow-actions"]')
  await press(`[data-testid="${action}-button"]:not([aria-disabled="true"])`)
  if (action === 'reset') {
    await press('[data-testid="workflow-reset-event-id-select-button"]')
    await press('#reset-event-id-select [role="option"]', 'WorkflowTaskCompleted')
  }
  await press(`[data-testid="${action}-confirmation-modal"] [data-testid="confirm-modal-button"]:enabled`)
}

test.each([
  ['terminate', 'terminated', 'had ended there as terminated'],
  ['reset', 'reset', 'was reset'],
] as const)(
  'the button %s ends the workflow there, and the run goes on in another',
  async (action, id, workflow) => {
    const tasks = async (): Promise<string[]> =>
      (await send('GET', `/execution-runs/${id}/`)).activities.map(
        ({ status, attempt }: Json) => `${String(status)} ${String(attempt)}`,
      )
    const restarts = async (): Promise<number> => {
      const counted = /^orrery_workflows_restarted_total\{kind="execution-run"\} (\d+)$/m
      return Number(counted.exec(await metrics())?.[1] ?? 0)
    }
    const before = await restarts()
    await send('POST', '/execution-runs/', { id, schedulePlanId: planId, mode: 'real' })
    await until('its second task runs', 120, async () => (await tasks())[1] === 'running 1')
    await openRun(id)
    await choose(action)
    const event = await until('the run says so', 180, async () =>
      (await send('GET', `/execution-runs/${id}/events/`)).items.find(
        (one: Json) => one.eventType === 'execution.run.workflow-restarted',
      ),
    )
    expect([event.payload, (await runOf(id)).status]).toEqual([{ workflow }, 'running'])
    expect(await restarts()).toBe(before + 1)
    // What had completed stays so, and what runs was not started again.
    expect(await tasks()).toEqual(['completed 1', 'running 1'])
    await send('POST', `/execution-runs/${id}/cancel/`)
    await until('the run is cancelled', 60, async () => (await runOf(id)).status === 'cancelled')
  },
  600_000,
)

test('what the page read is in the audit by origin; its key is in the data folder for its owner alone', async () => {
  const events: Json[] = await send('GET', '/audit-events/?eventType=workflow-payloads.read')
  const port = new URL(String(ready.temporalUiUrl)).port
  expect([...new Set(events.map((event) => event.metadata.origin))].sort()).toEqual([
    `http://127.0.0.1:${port}`,
    `http://localhost:${port}`,
  ])
  const file = join(folder, 'temporal-codec.key')
  expect(statSync(file).mode & 0o777).toBe(0o600)
  expect(daemon.output()).not.toContain(readFileSync(file, 'utf8').trim())
})

test('workflow tasks that fail are counted under the name that rules and dashboard ask for', async () => {
  const connection = await Connection.connect({ address: ready.temporalAddress })
  const handle = await new Client({ connection }).workflow.start('unknown', {
    ...{ taskQueue: 'orrery', workflowId: 'unknown' },
  })
  const name = 'temporal_workflow_task_execution_failed'
  await until('its failures are counted', 120, async () =>
    new RegExp(`^${name}\\{[^}]*workflow_type="unknown"[^}]*\\} [1-9]`, 'm').test(await metrics()),
  )
  await handle.terminate()
  await connection.close()
  const deploy = join(import.meta.dirname, '../../deploy')
  for (const file of ['prometheus/rules.yml', 'grafana/orrery.json'])
    expect(readFileSync(join(deploy, file), 'utf8')).toContain(`sum by (workflow_type) (increase(${name}[`)
})
