import type { AlgorithmOptions, ProblemSize } from './algorithm.ts'

/** The options where a session names none (domain-reference 11). */
export const beamDefaults = { beamWidth: 120, optionCount: 25, readyBranchLimit: 3 }

/**
 * Placements that a search may weigh, unless `maxWork` says otherwise; 1e8 take about two minutes.
 * A larger problem gets a narrower beam, because other sessions wait for the thread.
 */
const longestSearch = 1e8

/** Placements that are judged at one step: each is an object until the next beam is chosen. */
const mostAtOnce = 2e6

/** The options of a search on a problem of this size; a beam of 0 is no search. */
export function optionsFor(size: ProblemSize, options: AlgorithmOptions) {
  const { activityCount, dependencyCount, compatibleResources, expandedStates } = size
  const { beamWidth, optionCount, readyBranchLimit } = { ...beamDefaults, ...options }
  // A placement asks for the arrival of each input at each resource. A partial schedule is made of
  // 1/64 of its predecessor's columns for each activity.
  const placements = expandedStates + (dependencyCount * compatibleResources) / 32
  const workOfOne = Math.max(1, placements * readyBranchLimit + activityCount ** 2 / 64)
  return {
    beamWidth: Math.min(
      beamWidth,
      Math.floor((options.maxWork ?? longestSearch) / workOfOne),
      Math.floor(mostAtOnce / (readyBranchLimit * Math.max(1, compatibleResources))),
    ),
    optionCount,
    readyBranchLimit,
    placements,
  }
}
