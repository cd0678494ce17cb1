import { join } from 'node:path'
import { expect } from '@jest/globals'
import { differencesFromSimgrid } from '../simulator/wfformat.ts'
import { needs } from '../support/needs.ts'
import { recordedTraces } from '../../sites/requirements.ts'
import { traceProblem } from './trace.ts'

const { test } = needs('traces', 'python3-simgrid')

/**
 * Real traces from 10 to 2,122 tasks of all shapes; the replay in Python takes about a second for
 * the largest.
 */
const names = [
  'helloworld-forkjoin-10-chameleon',
  'montage-chameleon-2mass-005d-001',
  'epigenomics-chameleon-hep-1seq-50k-001',
  '1000genome-chameleon-2ch-250k-001',
  'soykb-chameleon-10fastq-10ch-001',
  'srasearch-chameleon-50a-001',
  'rnaseq-dirt02-001',
  'montage-chameleon-dss-10d-001',
  'cycles-chameleon-5l-2c-9p-001',
  'bwa-chameleon-large-001',
  'montage-chameleon-dss-15d-001',
]

test.each(names)(
  '%s, planned with HEFT on 16 hosts: SimGrid gives the same makespan, starts and finishes',
  (name) =>
    expect(differencesFromSimgrid(traceProblem(join(recordedTraces, `${name}.json`), 16))).toEqual([]),
  120_000,
)
