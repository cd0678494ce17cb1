import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Problem } from '../../src/schedulers/problem.ts'
import { problemOf, type WfFormat } from '../simulator/wfformat.ts'

/** A path below the data that lies beside the checkout. */
export const shared = (path: string): string => fileURLToPath(new URL(`../../../shared/data/${path}`, import.meta.url))

/** Folder of the recorded instances (WfInstances): the one that `ORRERY_TRACES` names, or that of the data beside the checkout. */
export const traces = process.env['ORRERY_TRACES'] ?? shared('wfinstances')

/** False: the instances are not there and nobody demands them, so the tests that read them do not apply. Demanded and missing is a failure. */
export function applicable(): boolean {
  if (existsSync(traces)) return true
  if (process.env['REQUIRE_SHARED'] === '1') throw new Error(`${traces} is missing, and REQUIRE_SHARED=1 demands it`)
  return false
}

/** The recorded instance in a file, of WfInstances or of our own making. */
export const readInstance = (path: string): WfFormat => JSON.parse(readFileSync(path, 'utf8')) as WfFormat

/** The instance in a file as a planning problem, see `problemOf`. */
export const traceProblem = (path: string, hosts: number, lanes = 1): Problem => problemOf(readInstance(path), hosts, lanes)
