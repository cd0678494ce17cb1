import { expect } from '@jest/globals'
import { playReachRounds } from './reach-rounds.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { test } = needs(...sites.slurm, ...sites.kubernetes, ...sites.docker)

test('worker and daemon are killed with tasks in flight on all sites: nothing is lost, nothing is done twice', async () => {
  const rounds = await playReachRounds({ rounds: 1, seed: 7, perHost: 20, onSlurm: 12, taskSeconds: 8 })
  expect(rounds).toMatchObject([{ violations: [] }])
  expect(rounds[0]?.inFlight).toBeGreaterThanOrEqual(30)
}, 400_000)
