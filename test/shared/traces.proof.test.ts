import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { needs } from '../support/needs.ts'
import { recordedTraces } from '../../sites/requirements.ts'
import type { TestService } from '../support/service.ts'
import { expectSimulated, openSite } from '../support/simulated-instances.ts'
import { filesOf } from './trace.ts'

const { afterAll, beforeAll, test } = needs('traces')

let service: TestService
beforeAll(async () => {
  service = await openSite()
}, 120_000)
afterAll(() => service[Symbol.asyncDispose]())

test.each(filesOf(recordedTraces, /\.json$/))(
  'the trace of a real run is imported, planned and simulated: %s',
  (file) =>
    expectSimulated(service, file.replace('.json', ''), readFileSync(join(recordedTraces, file), 'utf8')),
  60_000,
)
