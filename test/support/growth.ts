/**
 * The order of growth of the time that `work` takes, from n to 4n: 1 where it is proportional, 2
 * where it is quadratic. The least of five measurements of each in turn, in one process, so that the
 * speed of the machine does not count.
 */
export const growth = async (work: (n: number) => unknown, n: number): Promise<number> => {
  const measure = async (count: number): Promise<number> => {
    const began = performance.now()
    await work(count)
    return performance.now() - began
  }
  await work(n)
  let [small, large] = [Infinity, Infinity]
  for (let round = 0; round < 5; round++) {
    small = Math.min(small, await measure(n))
    large = Math.min(large, await measure(4 * n))
  }
  return Math.log(large / small) / Math.log(4)
}
