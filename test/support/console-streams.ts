import { once } from 'node:events'
import { WebSocket } from 'ws'
import { until } from '../failures/programs.ts'
import type { TestService } from './service.ts'

/** Opens a session. @returns its id, once its terminal is there */
export const openTerminal = async (
  service: Pick<TestService, 'post' | 'get'>,
  resourceId: string,
): Promise<string> => {
  const { id } = await service.post('/console-sessions/', { resourceId })
  await until('the terminal', 120, async () => {
    const { status, failure } = await service.get(`/console-sessions/${id}/`)
    if (status === 'failed') throw new Error(failure)
    return status === 'connected'
  })
  return id
}

/** A connection to a session's stream, and the output that it received. */
export const attachTo = async (service: { baseUrl: string }, id: string, search = '') => {
  const url = `${service.baseUrl.replace('http', 'ws')}/console-sessions/${id}/stream/${search}`
  const ws = new WebSocket(url)
  ws.on('error', () => undefined)
  let text = ''
  ws.on('message', (data: Buffer, isBinary: boolean) => (text += isBinary ? data.toString() : '(text)'))
  const closed = once(ws, 'close') as Promise<[number, Buffer]>
  // An upgrade that is refused rejects both promises.
  closed.catch(() => undefined)
  await once(ws, 'open')
  const shows = (what: string | RegExp, seconds = 50) =>
    until(`${String(what)} in ${JSON.stringify(text.slice(-500))}`, seconds, () =>
      typeof what === 'string' ? text.includes(what) : what.test(text),
    )
  return { ws, closed, shows, text: () => text }
}
