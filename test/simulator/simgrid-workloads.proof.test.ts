import { expect } from '@jest/globals'
import { epigenomics, montage } from '../../bench/workloads.ts'
import { needs } from '../support/needs.ts'
import { differencesFromSimgrid, problemOf } from './wfformat.ts'

const { describe, test } = needs('python3-simgrid')

describe('generated workflows on 16 hosts, planned with HEFT: SimGrid gives the same makespan, starts and finishes', () => {
  test.each([
    ['montage of 472 tasks', () => montage({ side: 4 })],
    ['montage of 1,066 tasks', () => montage()],
    ['epigenomics of 1,695 tasks', () => epigenomics()],
  ])(
    '%s',
    (_name, generate) => expect(differencesFromSimgrid(problemOf(generate(), 16))).toEqual([]),
    120_000,
  )
})
