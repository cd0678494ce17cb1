import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { PlanningProblem } from '../../src/schedulers/problem.ts'
import { problemOf, type WfFormat } from '../simulator/wfformat.ts'

/** A path below the data that lies beside the checkout. */
export const shared = (path: string): string =>
  fileURLToPath(new URL(`../../../shared/data/${path}`, import.meta.url))

/**
 * Paths of the files below a folder that match, sorted. One stand-in where the folder is missing:
 * Jest's tables may not be empty, and tests that are left out are counted.
 */
export const filesOf = (folder: string, pattern: RegExp): string[] =>
  existsSync(folder)
    ? readdirSync(folder, { recursive: true, encoding: 'utf8' })
        .filter((path) => pattern.test(path))
        .toSorted()
    : [`the files of ${folder}`]

/** The recorded instance in a file, of WfInstances or of our own making. */
export const readInstance = (path: string): WfFormat => JSON.parse(readFileSync(path, 'utf8')) as WfFormat

/** The instance in a file as a planning problem, see `problemOf`. */
export const traceProblem = (path: string, hosts: number, lanes = 1): PlanningProblem =>
  problemOf(readInstance(path), hosts, lanes)
